"""The errors that a user can cause, with the exit code of each, and how a command ends with them.

An error about an unknown name suggests the `closest` known one.

How a command begins is in run_module.py.
"""

from __future__ import annotations

import errno
import io
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from muster import json_output
from muster.printable import printable
from muster.terminal import color_messages, in_one_line
from muster.worker.lost_peer import text_of as text_of
from muster.worker.process import BY_CTRL_C
from muster.worker.process import NO_RETRY as NO_RETRY
from muster.worker.process import STOPPED as STOPPED
from muster.worker.process import TIME_OVER as TIME_OVER

PROBLEM_END = re.compile(r"\n(?!tip: )")
SHORTEST_PREFIX = 3  # fewest letters that may begin another name, as `nod` begins `nodes`
LEAST_LIKENESS = 0.75  # of difflib's ratio; its default, 0.6, suggests names that nobody means
# By error number: the limit that was reached, and what to do.
LIMITS = {
    errno.EMFILE: ("this process has too many open files", "raise the limit: ulimit -n"),
    errno.ENFILE: (
        "the whole system has too many open files",
        "raise the limit: sysctl fs.file-max",
    ),
    errno.EAGAIN: ("this user has too many processes or threads", "raise the limit: ulimit -u"),
    errno.ENOMEM: ("not enough memory", "check free -h and ulimit -v"),
}


class ReaderGone(BrokenPipeError):
    """The reader of this process's output has closed it, as `| head` does."""


class MusterError(Exception):
    """An error that a user can act on: Muster's commands print its problems, without a traceback.

    A problem may be followed by its remedy, on a line that begins with `tip: `.
    """

    exit_code = 1

    def __str__(self) -> str:
        return in_one_line("\n".join(self.problems))

    @property
    def problems(self) -> list[str]:
        """Each problem, with its tip."""
        return PROBLEM_END.split(str(self.args[0])) if self.args else []


class UsageError(MusterError):
    """A wrong flag, file, argument or input."""

    exit_code = 2


# The meaning of each exit code; any other one comes from a program that exited with it.
NAMES = {
    0: "done",
    MusterError.exit_code: "failed",
    UsageError.exit_code: "refused",
    STOPPED: "stopped",
    NO_RETRY: "given_up",
    TIME_OVER: "time_over",
}


def name_of(code: int) -> str:
    """The meaning of an exit code in one word, as in the output of `--json`."""
    return NAMES.get(code, "signal" if code > 128 else "failed")


def refuse(problems: Iterable[str], where: str = "") -> None:
    """Raise one `UsageError` that lists every problem; do nothing if there is none.

    Raises:
        UsageError: `problems` is not empty.
    """
    lines = [f"{where}{problem}" for problem in problems]
    if lines:
        raise UsageError("\n".join(lines))


class RunFailed(MusterError):
    """A run did not end well; its cause is the function's exception, if it can be unpickled."""

    def __init__(
        self,
        message: str,
        code: int,
        rank: int | None = None,
        host: str | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(message, code, rank, host, traceback)
        self.message = message
        self.exit_code = code
        self.rank = rank  # of the first failure; None: no rank failed
        self.host = host
        self.traceback = traceback  # of the remote rank, as text


def explained(error: BaseException, path: Path | None = None) -> str:
    """One line: which file could not be written, on which host, and why."""
    if path is None and isinstance(error, OSError) and error.filename:
        path = Path(os.fsdecode(error.filename))
    where = f"{socket.gethostname()}: {path}" if path else socket.gethostname()
    if limit := at_limit(error):
        return limit
    if is_full(error):
        return (
            f"{where}: the disk is full, or your quota is used up; free some space, then start "
            "again"
        )
    why = error.strerror if isinstance(error, OSError) else None
    return f"{where} cannot be written: {why or error}"


def is_denied(path: str) -> bool:
    """Whether this user may not enter a folder on the way to `path`."""
    try:
        Path(path).stat()
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def at_limit(error: BaseException) -> str:
    """One line if the process has reached a limit on open files, processes or memory; else ""."""
    # output to a slow reader also fails with EAGAIN, which is no limit
    if isinstance(error, OSError) and hasattr(error, "characters_written"):
        return ""
    if isinstance(error, OSError) and error.errno in LIMITS:
        what, do = LIMITS[error.errno]
    elif isinstance(error, RuntimeError) and "can't start new thread" in text_of(error):
        what, do = LIMITS[errno.EAGAIN]
    else:
        return ""
    return f"{socket.gethostname()}: {what}; {do}"


def is_full(error: BaseException) -> bool:
    """Whether a write failed for lack of space."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    text = text_of(error)
    return "No space left" in text or "os error 28" in text  # the latter is safetensors' text


def closest(name: str, known_names: Iterable[str]) -> str:
    """The known name that starts with `name`, or else is most similar; empty if none is similar.

    If several names start with it, names in which it is a whole word come first: for `batch`,
    `batch-size` rather than `batchnorm`. Of these, the shortest is returned.
    """
    name = name.lower()
    names = sorted(known_names)
    longer = [other for other in names if len(name) >= SHORTEST_PREFIX and other.startswith(name)]
    if longer:
        return min(longer, key=lambda other: (other[len(name) :][:1].isalnum(), len(other)))
    import difflib  # imported here: most commands do not need it

    similar = difflib.get_close_matches(name, names, n=1, cutoff=LEAST_LIKENESS)
    return similar[0] if similar else ""


def run(main: Callable[[], int]) -> NoReturn:
    """Run `main` and exit with its code; print an error that a user can act on as one message.

    A reader of the output may close it early, as `| head` does: that is not an error.
    """
    _open_closed_streams()
    _print_any_text()
    color_messages()
    # other users must not be able to write to files of this process and its workers
    os.umask(os.umask(0o077) | 0o002)
    code: int | str | None
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see `begin` in run_module.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = _exit_code(main)
        sys.stdout.flush()  # while an error can still be reported
    except (OSError, RuntimeError) as error:
        if limit := at_limit(error):
            code = report(limit, MusterError.exit_code)
        elif isinstance(error, OSError):
            code = _unwritable(error)
        else:
            raise
    sys.exit(code)


def _open_closed_streams() -> None:
    """Open any closed stream, as after `command >&-`; else the next file takes its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 (to the end)
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _print_any_text() -> None:
    """Make stdout escape what it cannot encode, such as a file's name that is not valid UTF-8.

    Otherwise, in an ASCII-only locale, Python passes on some characters and refuses others.
    """
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        with suppress(OSError):  # the stream was opened for a file, and leads to a pipe now
            stream.reconfigure(errors="backslashreplace")


def _exit_code(main: Callable[[], int]) -> int | str | None:
    try:
        _refuse_removed_folder()
        return main()
    except SystemExit as ended:  # after --help
        return ended.code
    except MusterError as error:
        return report("\n".join(error.problems), error.exit_code)
    except PermissionError as error:
        if error.filename is None:
            raise
        return report(f"{os.fsdecode(error.filename)}: permission denied", UsageError.exit_code)
    except ModuleNotFoundError as error:
        return without_package(error)
    except KeyboardInterrupt:
        return report("interrupted by Ctrl-C", BY_CTRL_C)


def without_package(error: ModuleNotFoundError) -> int:
    """Print one line about a package that Muster needs and this Python lacks; return the exit code.

    Raises:
        ModuleNotFoundError: `error`, if its module belongs to no package that Muster needs.
    """
    from muster import extras  # imported here: only needed if a package is missing

    text = extras.explained(error)
    if text is None:
        raise error
    return report(text, UsageError.exit_code)


def _refuse_removed_folder() -> None:
    """Refuse to begin in a folder that does not exist any more.

    Raises:
        UsageError: the folder was removed, and perhaps created again under the same name.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        name = os.environ.get("PWD", "the folder")
        raise UsageError(
            f"the current folder, {name}, was removed\ntip: change to a folder that exists: cd"
        ) from None


def report(text: str, code: int) -> int:
    """Print an error, also as a JSON document if --json was given; return the exit code."""
    if code != BY_CTRL_C:
        print_problems(text.splitlines())
    if json_output.is_asked(sys.argv):
        json_output.begin()
        json_output.emit("error", exit_code=code, cause=name_of(code), message=in_one_line(text))
    return code


def print_problems(lines: Iterable[str]) -> None:
    """Print each problem, with its tip on a line of its own."""
    for line in printable("\n".join(lines)).splitlines():
        print(line if line.startswith("tip: ") else f"error: {line}", file=sys.stderr)


def _unwritable(error: OSError) -> int:
    """The exit code if output, or a file on a full disk, could not be written.

    Raises:
        OSError: `error`, if it has another cause.
    """
    if number := lost_reader(error):
        code = 128 + number
    elif is_full(error):
        code = MusterError.exit_code
        with suppress(OSError):  # stderr may be closed as well
            print(f"error: {explained(error)}", file=sys.stderr, flush=True)
    else:
        raise error
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # its buffer is lost; otherwise the interpreter would report it again
            silence(stream.fileno())
    return code


def lost_reader(error: OSError) -> int:
    """SIGPIPE if the reader of an output is gone, SIGHUP if its terminal was closed; else 0."""
    if isinstance(error, ReaderGone):
        return signal.SIGPIPE
    number = {errno.EPIPE: signal.SIGPIPE, errno.EIO: signal.SIGHUP}.get(error.errno or 0, 0)
    outputs = (1, 2, *json_output.descriptors())
    return number if number and any(map(_has_no_reader, outputs)) else 0


def silence(descriptor: int) -> None:
    """Discard what is still to be written to `descriptor`, so that writing cannot fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _has_no_reader(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
