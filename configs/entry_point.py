"""How a command begins and ends: one clear message where a user can act, and an exit code.

It needs the standard library alone: a command calls `begin` before it imports anything else.
"""

import argparse
import importlib.util
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from muster import json_output
from muster.errors import MusterError, UsageError, name_of
from muster.writing import explained, is_full

NEEDED = ("yaml", "rich")  # which an environment of ours has, and a bare Python has not


class Parser(argparse.ArgumentParser):
    """Whose errors are as those of all commands."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise UsageError(message)


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
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
    return code


def _has_no_reader(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
