"""A run whose disk is full ends with one line that says so, and its folder says so, too."""

import json
import sys

import pytest

from tests.commands import call
from tests.launch.submit import SUBMIT
from tests.preload import skip_if_quick

SMALL = """
mount -t tmpfs -o size=400k none "$0" && "$@"
code=$?
cp -r "$0" "$0.copy"  # what is mounted is gone with the namespace
exit $code
"""


@pytest.mark.needs("root", "namespaces")  # to make a small disk
def test_a_disk_that_fills_up_as_records_are_written_is_one_line_and_the_end_of_the_run(tmp_path):
    skip_if_quick()
    (logs := tmp_path / "logs").mkdir()
    flags = ["--task", "synthetic", "--nodes", "2", "--sync", "all_reduce", "--evaluate", "never"]
    flags += ["--max-steps", "1000000", "--epochs", "1000000", "--run-id", "full"]
    argv = [sys.executable, SUBMIT, *flags, "--logs-dir", str(logs)]
    done = call("unshare", "--mount", "sh", "-c", SMALL, logs, *argv)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    message = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert message and all("the disk is full" in line for line in message)
    end = json.loads((tmp_path / "logs.copy" / "full" / "exit.json").read_text())
    assert end["code"] == 1 and "the disk is full" in end["message"]
