"""Find and remove what runs have left behind on this machine, apart from their run folders.

A run folder is the user's own record of a run: it is never removed here, and neither is anything of
a run that is not over. Leftovers are of no use after a run: a link, a temporary folder of a process
that was killed, or, on a login node, an earlier version of Muster or the session of a command that
has ended.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rich.filesize import decimal

from launch.deadlines import LEFT_FILES_NEEDED_S, OLD_LEFT_FILES_S
from launch.nodes import node_data
from launch.nodes.answers import LeftData
from launch.nodes.node_facts import SENT_PREFIXES
from launch.runs import run_record, run_state
from muster import writing
from muster.checkout import CHECKOUT
from muster.command import logins

FAILED = "it could not be removed"
SESSION_FILES = ("lock", "out", "err")  # of launch/ssh/login_node/session.sh


@dataclass(frozen=True)
class Leftover:
    """A leftover file or folder, and a description of it."""

    path: str
    what: str
    size_bytes: int = 0
    node: str | None = None  # None: this machine
    stays: str = ""  # why it is not removed
    error: str = ""  # why it could not be removed

    def lines(self) -> str:
        """Two lines to print: its size and path, then what it is."""
        size = decimal(self.size_bytes) if self.size_bytes else ""
        place = f"{self.node}: {self.path}" if self.node else self.path
        why = self.error or self.stays
        return f"{size:>8}  {place}\n{'':10}{self.what}{f'; kept: {why}' if why else ''}"


def here() -> list[Leftover]:
    """All leftovers on this machine."""
    return [
        *_links(),
        *_records_of_logins(),
        *_links_to_sent_folders(),
        *_temporary(),
        *_data(),
        *_at_login(),
    ]


def remove(leftover: Leftover) -> Leftover:
    """Remove a leftover from this machine; if that fails, the returned leftover has the error."""
    path = Path(leftover.path)
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        text = error.strerror or str(error)
        return replace(leftover, stays=FAILED, error=text)
    return leftover


def running() -> list[str]:
    """The names of the known runs that are not over."""
    paths = run_record.run_folders()
    states = run_state.states_of(paths, run_state.Watchers())
    return [path.name for path, state in zip(paths, states, strict=True) if not state.is_over]


def _links() -> Iterator[Leftover]:
    """Links that are more than a month old, to run folders that are missing."""
    for link, run_dir in run_record.links():
        if _age_s(link) > OLD_LEFT_FILES_S and not os.path.lexists(run_dir):
            yield Leftover(str(link), f"symbolic link to {run_dir}, which no longer exists")


def _records_of_logins() -> Iterator[Leftover]:
    """Records of runs on login nodes that nobody has followed for a month."""
    with suppress(OSError, RuntimeError):
        for path in sorted(logins().iterdir()):
            if _age_s(path) > OLD_LEFT_FILES_S:
                yield Leftover(str(path), "record of where a run is, more than a month old")


def _links_to_sent_folders() -> Iterator[Leftover]:
    """Links in this checkout to folders of runs.

    Nodes that see this checkout find through them the files that other nodes were sent.
    """
    paths = (
        path for begin in SENT_PREFIXES for path in sorted(Path(CHECKOUT, "logs").glob(f"{begin}*"))
    )
    run_dirs = {link: link.readlink().parent for link in paths if link.is_symlink()}
    states = run_state.states_of([*run_dirs.values()], run_state.Watchers())
    for (link, run_dir), state in zip(run_dirs.items(), states, strict=True):
        # if all runs of the folder are missing, its disk may be unmounted, or another machine's
        if state.is_over and os.path.exists(run_dir.parent):  # noqa: PTH110 (Path raises without permission)
            yield Leftover(str(link), f"symbolic link for {run_dir.name}, which is over")


def _temporary() -> Iterator[Leftover]:
    for folder in writing.left_over():
        yield _folder(folder, "temporary files of a process that was killed")


def _data() -> Iterator[Leftover]:
    """Data that local runs have copied to a separate place."""
    for entry in node_data.data_left({}):
        yield data_leftover(LeftData(**entry))


def data_leftover(entry: LeftData, node: str | None = None) -> Leftover:
    """The leftover for a folder with data."""
    kind = "data from --send" if entry.whole else "incomplete data from --send"
    stays = "a run is using or sending it" if entry.used else ""
    return Leftover(entry.path, kind, entry.bytes, node, stays)


def _at_login() -> Iterator[Leftover]:
    """Other versions and ended sessions of an installation that laptops have sent."""
    base = CHECKOUT.parent.parent
    if CHECKOUT.parent.name != "versions" or not (CHECKOUT / ".sent").exists():
        return
    sessions = sorted(path for path in base.glob("sessions/*") if _is_session(path))
    over = [path for path in sessions if _is_over(path)]
    for path in over:
        # a laptop may still ask for the last output of a newer session
        if _age_s(path / "err") > LEFT_FILES_NEEDED_S:
            yield _folder(path, "output of a command that ended more than a day ago")
            if (call := path.with_name(f"{path.name}.call")).is_dir():
                yield _folder(call, "the function that was sent for it")
    stays = ""
    if (names := running()) or len(over) < len(sessions):
        stays = f"{', '.join(names[:3]) or 'a command'} is not over and may need it"
    for path in sorted(base.glob("versions/*")):
        # another laptop may be about to use it
        is_new = _age_s(path / ".sent") < LEFT_FILES_NEEDED_S
        if path != CHECKOUT and (path / ".sent").exists() and not is_new:
            yield _folder(path, "another version of Muster", stays)


def _is_session(path: Path) -> bool:
    return all((path / name).is_file() for name in SESSION_FILES)


def _is_over(session: Path) -> bool:
    """Whether nobody is waiting for the session's command any more."""
    try:
        with (session / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _folder(path: Path, what: str, stays: str = "") -> Leftover:
    return Leftover(str(path), what, _size_bytes(path), stays=stays)


def _size_bytes(folder: Path) -> int:
    """The bytes of all files below a folder; links are not followed."""
    return sum(_bytes_of(Path(top, name)) for top, _, names in os.walk(folder) for name in names)


def _bytes_of(path: Path) -> int:
    with suppress(OSError):  # removed in the meantime
        return path.lstat().st_size
    return 0


def _age_s(path: Path) -> float:
    """The seconds since a file or link was last changed; 0 if it does not exist."""
    with suppress(OSError):
        return time.time() - path.lstat().st_mtime
    return 0.0
