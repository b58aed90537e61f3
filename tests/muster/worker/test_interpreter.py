"""A program that is there but cannot be started: the reason is named, not that it is missing."""

import sys

import pytest

from muster.checkout import CHECKOUT
from muster.worker import interpreter
from tests.commands import call
from tests.written import executable

FIRST_LINES = [
    ("#!/bin/sh\r\n", " has the line ends of DOS, with which its first line names no program; "),
    ("#!/no/such/python -u\n", ": its first line names '/no/such/python', which is no program on "),
    ("echo x\n", " has no first line such as #!/bin/bash; add it, or run: bash "),
]


@pytest.mark.parametrize(("line", "why"), FIRST_LINES)
def test_reason_why_a_program_cannot_start_is_named(line, why, tmp_path):
    program = str(executable(tmp_path / "run.sh", line))
    code = f"from muster.worker import worker_main; worker_main.run_command([{program!r}])"
    done = call(sys.executable, "-c", code, cwd=CHECKOUT)
    assert done.returncode == 127 and f"error: {program}{why}" in done.stderr


def test_an_interpreter_that_env_looks_for_has_no_dos_line_ends(tmp_path):
    program = str(executable(tmp_path / "run.py", "#!/usr/bin/env python3\r\n"))
    assert interpreter.DOS in str(interpreter.problem(program))


def test_startable_program_is_left(tmp_path):
    for line in ("#!/bin/sh\n", "#! /usr/bin/env bash\n", "#!/bin/sh -e", "\x7fELF"):
        assert interpreter.problem(str(executable(tmp_path / "run", line))) is None
    assert interpreter.problem("/nowhere/run") is None
