"""The errors a user can cause, each with the exit code it ends a command with; and how it ends.

It needs the standard library alone: a command calls `begin` before it imports anything else.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from muster import json_output
from muster.worker.lost_peer import text_of as text_of

NEEDED = ("yaml", "rich")  # which an environment of ours has, and a bare Python has not

# Of a run that was stopped cleanly and can be continued: sysexits.h's "try again".
STOPPED = 75
# Of a run that should not be started again by itself: it fails without getting any further.
NO_RETRY = 93
# Of a command that was to wait for so long, as of timeout(1).
TIME_OVER = 124


class MusterError(Exception):
    """Something a user can act on: printed as one line, never as a traceback."""

    exit_code = 1


class UsageError(MusterError):
    """A wrong flag, file or input, found before any training starts."""

    exit_code = 2


# What each exit code says by itself; another one is that of a program which ended itself with it.
NAMES = {
    0: "done",
    MusterError.exit_code: "failed",
    UsageError.exit_code: "refused",
    STOPPED: "stopped",
    NO_RETRY: "given_up",
    TIME_OVER: "time_over",
}


def name_of(code: int) -> str:
    """What an exit code says, in one word, as documents of `--json` have it."""
    return NAMES.get(code, "signal" if code > 128 else "failed")


def refuse(problems: Iterable[str], where: str = "") -> None:
    """Raise one `UsageError` that holds every problem at once; do nothing where there is none.

    Raises:
        UsageError: `problems` is not empty.
    """
    found = [f"{where}{problem}" for problem in problems]
    if found:
        raise UsageError("\n".join(found))


class RunFailed(MusterError):
    """A run did not end well; chained to what its function raised, where that can be unpickled."""

    def __init__(
        self,
        message: str,
        code: int,
        rank: int | None = None,
        host: str | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(message, code, rank, host, traceback)
        self.message, self.exit_code = message, code
        self.rank, self.host = rank, host  # the first that failed; None: it was no rank's failure
        self.traceback = traceback  # the remote one, as text

    def __str__(self) -> str:
        return self.message


def explained(error: BaseException, path: Path | None = None) -> str:
    """One line that says on which host which file could not be written, and why."""
    if path is None and isinstance(error, OSError) and error.filename:
        path = Path(os.fsdecode(error.filename))
    where = f"{socket.gethostname()}: {path}" if path else socket.gethostname()
    if is_full(error):
        return f"{where}: the disk is full, or your quota on it; make room there, and start again"
    why = error.strerror if isinstance(error, OSError) else None
    return f"{where} cannot be written: {why or error}"


def is_full(error: BaseException) -> bool:
    """Whether a write failed for lack of space."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    text = text_of(error)
    return "No space left" in text or "os error 28" in text  # safetensors' own


def begin() -> None:
    """Have Ctrl-C end this process, until `run`, without a traceback of imports.

    Outside the environment the process ends here: one line says what is missing, and what to do.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        root = Path(__file__).resolve().parent.parent
        ready = (root / ".venv" / "bin" / "activate").exists()
        do = f"source {root}/.venv/bin/activate" if ready else f"make -C {root} setup"
        text = f"{sys.executable} has no {missing[0]}; activate Muster's environment: {do}"
        sys.exit(_report(UsageError(text)))


def run(main: Callable[[], int]) -> NoReturn:
    """End the process with `main`'s code; an error a user can act on becomes one clear message.

    Whoever reads what is printed may leave early, as `| head` does: that is no error.
    """
    _open_what_is_closed()
    code: int | str | None
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see `begin`
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = _code(main)
        sys.stdout.flush()  # here, where an error can still be reported
    except OSError as error:
        code = _unwritable(error)
    sys.exit(code)


def _open_what_is_closed() -> None:
    """Have all three streams, as after `command >&-`; else an opened file takes its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 (to the end)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _code(main: Callable[[], int]) -> int | str | None:
    try:
        return main()
    except SystemExit as ended:  # after --help
        return ended.code
    except MusterError as error:
        return _report(error)
    except KeyboardInterrupt:
        _as_json("interrupted by Ctrl-C", 130)
        return 130


def _report(error: MusterError) -> int:
    """Print an error, as a document, too, where those are asked for; its exit code."""
    for line in str(error).splitlines():
        print(f"error: {line}", file=sys.stderr)
    _as_json(str(error), error.exit_code)
    return error.exit_code


def _as_json(text: str, code: int) -> None:
    if json_output.is_asked(sys.argv):
        json_output.begin()
        json_output.emit("error", exit_code=code, cause=name_of(code), message=text)


def _unwritable(error: OSError) -> int:
    """The exit code where output could not be written, or a file since the disk is full.

    Raises:
        OSError: `error`, where it is another one.
    """
    if isinstance(error, BrokenPipeError) and any(
        map(_has_no_reader, (1, 2, *json_output.descriptors()))
    ):
        code = 128 + signal.SIGPIPE
    elif is_full(error):
        code = MusterError.exit_code
        with suppress(OSError):  # that is where stderr may go, too
            print(f"error: {explained(error)}", file=sys.stderr, flush=True)
    else:
        raise error
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # what is left in it is lost; the interpreter would complain of it again
            silence(stream.fileno())
    return code


def silence(descriptor: int) -> None:
    """Let what is still to be written go nowhere, rather than fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _has_no_reader(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
