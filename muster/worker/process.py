"""The basics of our processes: exit codes, the checkout, ending with a parent, whole files.

    python process.py PARENT_PID PROGRAM [argument ...]   become PROGRAM, which ends with the parent

Scripts load this file by its path: a script has no checkout on its path yet, and in a worker
`muster` may be the user's own package. It needs only the standard library of Python 3.8 or newer.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# The run was stopped cleanly and can be continued: "try again" in sysexits.h.
STOPPED = 75
# The run should not be restarted automatically: it fails without any progress.
NO_RETRY = 93
# The command's time to wait has passed, as in timeout(1).
TIME_OVER = 124
# There is no such program, as in a shell.
NOT_FOUND = 127
# Ctrl-C, which needs no message.
BY_CTRL_C = 130

# A scheduler announces its time limit or preemption with these.
NOTICE_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
AGENT_PID = "MUSTER_AGENT_PID"  # the variable with the process id of a node's agent
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

PACKAGE = Path(__file__).resolve().parents[1]  # the package `muster`
_INSTALLED = "_checkout"  # a wheel has launch/, train/ and so on in this folder of the package
CHECKOUT = PACKAGE / _INSTALLED if (PACKAGE / _INSTALLED).is_dir() else PACKAGE.parent
# A clone's folder may have that name, too, but it is not in our package.
IS_INSTALLED = CHECKOUT.name == _INSTALLED and (CHECKOUT.parent / "checkout.py").is_file()


def prctl(option: int, value: int) -> None:
    """Call `prctl` for this process on Linux; other systems have no such call."""
    if sys.platform == "linux":
        import ctypes  # imported here: most processes do not need it

        ctypes.CDLL(None).prctl(option, value)


def end_with_parent(number: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Make Linux send this process a signal when its parent ends, even by SIGKILL.

    `parent`: the parent's process id, if it may have ended already; then this process ends.
    """
    parent = os.getppid() if parent is None else parent
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before Linux was asked
        os._exit(128 + number)


def end_with_agent() -> None:
    """Make this process end with its parent, and ignore a scheduler's notices.

    The notices would kill torchrun and leave its workers behind. The agent blocks them until they
    are ignored here.

    If the agent ended before Linux was asked, it is no longer an ancestor: this process ends.
    """
    for number in NOTICE_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICE_SIGNALS)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    agent = os.environ.get(AGENT_PID)
    if sys.platform == "linux" and agent is not None and int(agent) not in ancestors(os.getpid()):
        os._exit(128 + signal.SIGKILL)


def ending_with(parent: int, argv: Sequence[str]) -> tuple[str, ...]:
    """The command that becomes `argv` and ends with the process `parent`."""
    return (sys.executable, "-ISs", __file__, str(parent), *argv)


def ancestors(pid: int) -> Iterator[int]:
    """The processes above `pid`, as far as they are visible."""
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        pid = int(stat.rpartition(")")[2].split()[1])
        yield pid


@contextmanager
def atomic_replacement(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, for a file that becomes `path` at the end of the context.

    So a reader sees all of it or none. After an error the earlier file stays.

    Raises:
        OSError: the folder is missing and cannot be made, or the disk refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def write_whole(path: Path, data: bytes, *, mode: int = 0o644, forced: bool = False) -> None:
    """Write one file so that a reader sees all of it or none.

    `forced`: the file is on the disk when this returns, and survives a power failure.

    Raises:
        OSError: the disk is full, or refuses; the earlier file stays.
    """
    with atomic_replacement(path) as partial:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if forced:
                os.fsync(file.fileno())
    if forced:
        force(path.parent)


def force(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def signal_name(number: int) -> str:
    """`SIGTERM`; a signal without a name, such as a real-time signal, is `signal 40`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main() -> None:
    """Become another program, which ends with the process that started this one.

    An agent has threads, so it cannot do this itself between fork and exec.
    """
    parent = int(sys.argv[1])
    argv = sys.argv[2:]
    end_with_agent()
    end_with_parent(parent=parent)
    # Python ignores these signals; the other program should not
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        os._exit(NOT_FOUND)


if __name__ == "__main__":
    main()
