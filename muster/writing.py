"""Leave nothing half done on disk, however a process ends.

Small files are written whole or not at all; a full disk is reported in one line. A temporary folder
counts as left over once the process that made it has ended. That process holds a lock on a file in
the folder, which the kernel releases however the process ends.
"""

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from muster.errors import MusterError, explained, is_full
from muster.printable import json_text
from muster.worker.process import force as force
from muster.worker.process import write_whole

RECORD_BYTES = 64_000_000  # a longer file is not one of our records
ROOM_BYTES = 1_048_576  # a disk with less free space counts as full
PREFIX = "muster-"  # of temporary folders
LOCK = ".lock"


class CannotWrite(MusterError):
    """A file could not be written; the message names the host, the file and the reason."""


def write_json(path: Path, value: Any, *, forced: bool = False, mode: int = 0o644) -> None:
    """Write one JSON file so that a reader sees all of it or none; like `write_text`."""
    write_text(path, as_json(value), forced=forced, mode=mode)


def write_text(path: Path, text: str, *, forced: bool = False, mode: int = 0o644) -> None:
    """Write one file so that a reader sees all of it or none.

    `forced`: the file is on the disk when this returns, and survives a power failure.

    Raises:
        CannotWrite: the disk is full or refuses to write; the earlier content stays.
    """
    # a file name that is not valid UTF-8 must not make us lose the rest of the text
    data = text.encode(errors="backslashreplace")
    with writing(path):
        write_whole(path, data, mode=mode, forced=forced)


def read_json(path: Path, *needed: str) -> dict[str, Any] | None:
    """The value that `write_json` wrote; None if the file is missing or has no complete value.

    Also None if the value lacks one of the `needed` keys, as a file of another version may.

    A file may be empty after a power failure, unreadable for this user, or on a disk that is not
    mounted. A reader of many files must not fail because of one.
    """
    try:
        return record_in(record_data(path), *needed)
    except (OSError, ValueError):
        return None


def record_data(path: Path) -> bytes:
    """The content of a record's file.

    Raises:
        OSError: it cannot be read, or is not a regular file; a FIFO is not opened.
        ValueError: it is longer than any record.
    """
    with open_plain(path) as file:
        data = file.read(RECORD_BYTES + 1)
    if len(data) > RECORD_BYTES:
        raise ValueError(f"longer than {RECORD_BYTES // 1_000_000} MB")
    return data


def record_in(data: bytes, *needed: str) -> dict[str, Any] | None:
    """Parse the content of a file that `write_json` wrote; None as for `read_json`."""
    try:
        record = parsed(data)
    except ValueError:
        return None
    return record if isinstance(record, dict) and record.keys() >= set(needed) else None


def parsed(data: bytes) -> Any:
    """Parse JSON that somebody else may have written.

    Raises:
        ValueError: it is not JSON, or is nested too deeply for Python.
    """
    try:
        return json.loads(data.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading, but not a FIFO, which would block until it has a writer.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    no_plain_file = OSError(errno.EINVAL, "not a regular file", str(path))
    if not stat.S_ISREG(path.stat().st_mode):
        raise no_plain_file
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # replaced since
        os.close(descriptor)
        raise no_plain_file
    return os.fdopen(descriptor, "rb")


def tail(path: Path, most_bytes: int) -> bytes:
    """The end of a regular file of any length; empty if there is no such file."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
            return file.read(most_bytes)
    except OSError:  # it was moved meanwhile
        return b""


def full_disk(path: Path) -> str:
    """One line if there is no room for `path` on its disk; else ""."""
    probe = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        probe.write_bytes(os.urandom(ROOM_BYTES))
    except OSError as error:
        return explained(error, path) if is_full(error) else ""
    finally:
        with suppress(OSError):
            probe.unlink()
    return ""


def as_json(value: Any) -> str:
    """`value` as the JSON text that is written."""
    return json_text(value, indent=2, default=str) + "\n"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write `path` into one line.

    Raises:
        CannotWrite: with the host, `path` and the disk's error.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or is_full(error):
            raise CannotWrite(explained(error, path)) from error
        raise


@contextmanager
def scratch_folder(prefix: str = PREFIX, within: str | None = None) -> Iterator[Path]:
    """Make a folder for this user alone; it is removed at the end of the context.

    `prefix`: the beginning of its name; `within`: the folder in which it is made (default: TMPDIR).

    Raises:
        OSError: it cannot be made.
    """
    import tempfile  # imported here: few processes make such a folder

    with tempfile.TemporaryDirectory(
        prefix=prefix, dir=within, ignore_cleanup_errors=True
    ) as folder:
        unlocked = Path(folder, f"{LOCK}.new")
        descriptor = os.open(unlocked, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            # on a file system without locks the folder never counts as left over
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # renamed only now, because a file named LOCK must already be locked
                unlocked.rename(unlocked.with_name(LOCK))
            yield Path(folder)
        finally:
            os.close(descriptor)


@contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Hold a shared lock on a file during the context; do nothing if it cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def left_over() -> list[Path]:
    """The temporary folders that killed processes of this user left behind."""
    import tempfile

    roots = {Path(tempfile.gettempdir()).resolve(), Path("/tmp").resolve()}
    folders: list[Path] = []
    for root in sorted(roots):
        with suppress(OSError):
            folders += [path for path in sorted(root.glob(f"{PREFIX}*")) if _is_left_over(path)]
    return folders


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
