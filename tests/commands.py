"""Run commands in tests, either to their end or until the test has seen what it needs."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest import mock

from muster import errors

LIMIT_S = 300  # against hanging


def refusal(call: Callable[..., object], *given: object, **named: object) -> str:
    """Call a function that must refuse its arguments; return the error's message."""
    try:
        call(*given, **named)
    except errors.MusterError as error:
        return str(error)
    raise AssertionError(f"{call} refuses nothing: {given}, {named}")


def refused(main: Callable[[], object], *argv: object) -> str:
    """Call a command in this process, which must refuse it; return stderr. Stdout must be empty."""
    words = ["command", *map(str, argv)]
    out = StringIO()
    err = StringIO()
    with mock.patch.object(sys, "argv", words), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except errors.UsageError as error:
            errors.report(str(error), error.exit_code)
        else:
            raise AssertionError(f"{words} is not refused")
    assert out.getvalue() == ""
    return err.getvalue()


def call(
    *argv: object, cwd: str | Path | None = None, env: Mapping[str, str] | None = None,
    stdin: str | None = None, timeout_s: float = LIMIT_S,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a command to its end; `env` is added to this process's environment."""
    return subprocess.run(
        [str(word) for word in argv], cwd=cwd, env={**os.environ, **(env or {})}, input=stdin,
        capture_output=True, text=True, timeout=timeout_s,
    )  # fmt: skip


def begin(
    *argv: object, cwd: str | Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a command in a session of its own; the caller reads its output."""
    return subprocess.Popen(
        [str(word) for word in argv], cwd=cwd, env={**os.environ, **(env or {})}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kill the process at the end of the block, whatever happens."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def finish(process: subprocess.Popen[str], timeout_s: float = LIMIT_S) -> tuple[int, str, str]:
    """Wait for the process to end; return its exit code, stdout and stderr."""
    with ended(process):
        out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


def cause_in(text: str) -> str:
    """Return the last line of the cause that a failed run prints, above the rank's own output.

    If no rank's output is printed, it is the last line that is not a tip.
    """
    before, _, _ = text.rpartition("\nrun folder: ")
    last = text[len(before) :]  # of the last attempt
    lines = [line for line in last.splitlines() if line and not line.startswith("tip: ")]
    pointers = [at for at, line in enumerate(lines) if line.startswith("all of its output: ")]
    if not pointers:
        return lines[-1]
    at = pointers[-1]
    while lines[at - 1].startswith("  "):
        at -= 1
    cause = lines[at - 1 - (lines[at - 1] == "its output ends with:")]
    # lines that the terminal has already shown are not repeated
    return before.rstrip().splitlines()[-1] if cause.startswith("run folder: ") else cause
