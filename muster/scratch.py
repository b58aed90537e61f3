"""Temporary folders that are known to be left over once the process that made them is gone.

The process holds a lock on a file in the folder. The kernel releases it when the process ends,
however that happens.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "muster-"
LOCK = ".lock"


@contextmanager
def scratch_folder(prefix: str = PREFIX, within: "str | None" = None) -> Iterator[Path]:
    """A new folder for this user alone, removed at the end of the context.

    `prefix`: the begin of its name; `within`: the folder that it is made in (default: TMPDIR).

    Raises:
        OSError: it cannot be made.
    """
    with tempfile.TemporaryDirectory(
        prefix=prefix, dir=within, ignore_cleanup_errors=True
    ) as folder:
        unlocked = Path(folder, f"{LOCK}.new")
        descriptor = os.open(unlocked, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            with suppress(OSError):  # a file system without locks: it is never taken for left over
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                unlocked.rename(unlocked.with_name(LOCK))  # no lock is seen that nobody holds yet
            yield Path(folder)
        finally:
            os.close(descriptor)


def left_over() -> "list[Path]":
    """The folders of this user's processes that were killed."""
    roots = {Path(tempfile.gettempdir()).resolve(), Path("/tmp").resolve()}
    found = []
    for root in sorted(roots):
        with suppress(OSError):
            found += [path for path in sorted(root.glob(f"{PREFIX}*")) if _is_left_over(path)]
    return found


def _is_left_over(folder: Path) -> bool:
    with suppress(OSError):
        state = folder.lstat()
        if folder.is_symlink() or not folder.is_dir() or state.st_uid != os.geteuid():
            return False
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
        return True
    return False
