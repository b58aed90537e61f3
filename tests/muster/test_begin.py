"""A command that is still importing ends at Ctrl-C without a word."""

import signal
import sys

import pytest

from configs.plugins import REPOSITORY
from tests.commands import call

COMMANDS = ("submit", "jobs", "doctor", "testbed", "study", "sweep")
# Ctrl-C comes as the first of its own modules is imported.
INTERRUPTED = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run where it is ignored
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("launch"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_in_the_first_moment_is_no_traceback(command):
    script = REPOSITORY / "launch" / f"{command}.py"
    done = call(sys.executable, "-c", INTERRUPTED, script, "--help")
    assert done.stderr == ""
    assert done.returncode == -signal.SIGINT
