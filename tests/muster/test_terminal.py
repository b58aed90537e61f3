"""Messages are colored on a terminal; elsewhere they are the same, without colors."""

import os
import pty
import subprocess
import sys

import pytest

from muster.errors import UsageError
from muster.terminal import TIP, in_one_line

RED, CYAN, RESET = "\x1b[1;31m", "\x1b[36m", "\x1b[0m"
PROGRAM = """
from muster import errors
def main(): raise errors.UsageError("--lr is odd\\ntip: leave it out")
errors.run(main)
"""


def printed_on_terminal(env):
    ours, its = pty.openpty()
    whole_env = {**os.environ, "TERM": "xterm", **env}
    subprocess.run([sys.executable, "-c", PROGRAM], env=whole_env, stderr=its, check=False)
    os.close(its)
    text = os.read(ours, 65_536).decode()
    os.close(ours)
    return text.splitlines()


def test_messages_are_colored_on_a_terminal():
    error, tip = printed_on_terminal({"NO_COLOR": ""})
    assert error == f"{RED}error:{RESET} {CYAN}--lr{RESET} is odd"
    assert tip.endswith(f"tip:{RESET} leave it out")


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"NO_COLOR": "", "TERM": "dumb"}])
def test_without_colors_the_layout_is_the_same(env):
    assert printed_on_terminal(env) == ["error: --lr is odd", "tip: leave it out"]


def test_a_tip_belongs_to_its_problem():
    error = UsageError(f"a is odd{TIP}leave it out\nb is even")
    assert error.problems == [f"a is odd{TIP}leave it out", "b is even"]
    assert str(error) == in_one_line(f"a is odd{TIP}leave it out\nb is even")
    assert str(error).splitlines() == ["a is odd; leave it out", "b is even"]
