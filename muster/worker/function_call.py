"""Call the function that was given to `muster.launch`, and write its result or exception.

How it works: the launching side writes a folder with the pickled call and the facts that are needed
before unpickling. Every worker calls the function and writes one file with its result. Only the
owner may access these files, which is checked before they are read: data that another user could
have written is never unpickled.

    function/call.pkl         (function, args, kwargs), pickled by cloudpickle
    function/call.json        {"name", "python": "3.11", "path": folders of the program's modules}
    results/rank_00002.pkl    {"value": ...} or {"error": exception or None, "text": its text}

This file is loaded by its path. It needs only the standard library of Python 3.8 or newer, except
for cloudpickle, which pickles functions of notebooks and scripts.
"""

from __future__ import annotations

import json
import os
import pickle
import stat
import sys
import types
from pathlib import Path

from .lost_peer import text_of
from .process import write_whole

CALL = "call.pkl"
ABOUT = "call.json"


def python_version() -> str:
    """The version that pickles depend on, since code objects differ between versions."""
    return "{}.{}".format(*sys.version_info)


def call(folder: Path, run_dir: Path, rank: int) -> None:
    """Call the function in `folder`; write its result into the run folder."""
    about = json.loads(read_private(folder / ABOUT).decode())  # it names folders to import from
    if about["python"] != python_version():
        sys.exit(
            f"error: {about['name']} was pickled by Python {about['python']}, but this is Python "
            f"{python_version()} ({sys.executable}); choose another Python with python="
        )
    sys.modules["__main__"] = types.ModuleType("__main__")
    if "__mp_main__" in sys.modules:  # multiprocessing was imported in advance
        sys.modules["__mp_main__"] = sys.modules["__main__"]
    sys.path[:1] = [os.path.abspath(entry) for entry in about["path"]]  # noqa: PTH100 (follows no links)
    result = run_dir / "results" / f"rank_{rank:05d}.pkl"
    worker = os.getpid()
    try:
        function, args, kwargs = pickle.loads(read_private(folder / CALL))
        value = function(*args, **kwargs)
        if os.getpid() == worker:  # a forked child may return here, too
            write_private(result, _pickled(value))
    except BaseException as error:
        if os.getpid() == worker:
            write_private(result, _pickled_error(error))
        raise


def _pickled(value: object) -> bytes:
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps({"value": value})
    except Exception as error:
        raise TypeError(
            f"the function returned a {type(value).__name__} that cannot be pickled: "
            f"{text_of(error)}"
        ) from error
    return data


def _pickled_error(error: BaseException) -> bytes:
    """The pickled exception; only its text if it cannot be pickled."""
    import cloudpickle

    text = f"{type(error).__name__}: {text_of(error)}"
    try:
        data: bytes = cloudpickle.dumps({"error": error, "text": text})
        pickle.loads(data)
    except Exception:  # noqa: BLE001 (the user's own code)
        return cloudpickle.dumps({"error": None, "text": text})  # type: ignore[no-any-return]
    return data


def read_private(path: Path) -> bytes:
    """The content of a file that only this user may read.

    Raises:
        PermissionError: another user may have written it.
        OSError: it cannot be read, or is a symbolic link.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        if state.st_uid != os.geteuid() or state.st_mode & 0o077:
            raise PermissionError(
                f"{path} is not unpickled, because other users may have written it: its owner is "
                f"user {state.st_uid} and its mode is {state.st_mode & 0o777:o}; it must be your "
                "own, with mode 600"
            )
        return file.read()


def write_private(path: Path, data: bytes) -> None:
    """Write one file that only its owner may read, so that a reader sees all of it or none."""
    write_whole(path, data, mode=0o600)
