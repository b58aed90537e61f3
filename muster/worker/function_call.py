"""Call the function that `muster.launch` was given, and leave what it returns, or raises.

How it works: the launching side leaves a folder with the pickled call, and with what must be known
before it is unpickled. Every worker calls the function, and leaves one file with its result. Both
may only be read by their owner, and are only read if that is so: what somebody else could have
written is never unpickled.

function/call.pkl         (function, args, kwargs), pickled by cloudpickle
function/call.json        {"name", "python": "3.11", "path": folders of modules, from the program's}
results/rank_00002.pkl    {"value": ...} or {"error": exception or None, "text": what it was}

This file is loaded by its path. It needs the standard library alone, of Python 3.8 or newer, but
for cloudpickle, by which functions of notebooks and scripts are pickled.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import types
from pathlib import Path

from .lost_peer import text_of

CALL, ABOUT = "call.pkl", "call.json"


def python_version() -> str:
    """As pickles depend on it: code objects differ from one to the next."""
    return "{}.{}".format(*sys.version_info)


def call(folder: Path, run_dir: Path, rank: int) -> None:
    """Call the function whose call is in `folder`; its result goes into the run folder."""
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    if about["python"] != python_version():
        sys.exit(
            f"error: {about['name']} was pickled by Python {about['python']}, and this is Python "
            f"{python_version()} ({sys.executable}); name another with python="
        )
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path[:1] = [os.path.abspath(one) for one in about["path"]]  # noqa: PTH100 (no links followed)
    result, worker = run_dir / "results" / f"rank_{rank:05d}.pkl", os.getpid()
    try:
        function, args, kwargs = pickle.loads(read_private(folder / CALL))
        value = function(*args, **kwargs)
        if os.getpid() == worker:  # what it forks may return, too
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
    """What was raised; where it cannot be pickled, its text alone."""
    import cloudpickle

    text = f"{type(error).__name__}: {text_of(error)}"
    try:
        data: bytes = cloudpickle.dumps({"error": error, "text": text})
        pickle.loads(data)
    except Exception:  # noqa: BLE001 (whatever its own code does)
        return cloudpickle.dumps({"error": None, "text": text})  # type: ignore[no-any-return]
    return data


def read_private(path: Path) -> bytes:
    """What a file holds that is this user's alone.

    Raises:
        PermissionError: somebody else may have written it.
        OSError: it cannot be read, or is a link.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise PermissionError(
                f"{path} is not unpickled, since others may have written it: its owner is user "
                f"{facts.st_uid}, its mode {facts.st_mode & 0o777:o}; it must be yours alone (600)"
            )
        return file.read()


def write_private(path: Path, data: bytes) -> None:
    """Write one file that its owner alone may read, so that a reader sees all of it or none."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    partial.replace(path)
