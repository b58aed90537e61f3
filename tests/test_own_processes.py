"""A session ends what its tests have left, names it, and fails."""

import os
import re
import sys

import pytest

from muster.checkout import CHECKOUT
from tests.commands import call
from tests.launch.submit import alive

TESTS = """
import os, pathlib, signal, subprocess, sys, time
import psutil, pytest

HERE = pathlib.Path(__file__).parent
CODE = "import os, pathlib, sys, time; path = pathlib.Path(sys.argv[1]); " \\
    "path.with_suffix('.new').write_text(str(os.getpid())); " \\
    "path.with_suffix('.new').rename(path); time.sleep(10_000)"

def test_it():
    subprocess.Popen([sys.executable, "-c", CODE, HERE / "pid"], start_new_session=True)
    while not (HERE / "pid").exists():
        time.sleep(0.01)
    ENDS

def test_whether_it_goes_on():
    assert psutil.pid_exists(int((HERE / "pid").read_text())) is GOES_ON
"""
# What the test ends with, whether its process is there in the next one, the session's exit code.
ENDS = {
    "passes": ("pass", True, 1),
    "is interrupted": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(10_000)", False, 2),
}


@pytest.mark.parametrize(
    ("how", "processes"),
    [
        ("passes", 1),
        ("is interrupted", 0),
    ],
)
def test_no_process_outlives_the_session(tmp_path, how, processes):
    ends, goes_on, wanted = ENDS[how]
    text = TESTS.replace("ENDS", ends).replace("GOES_ON", str(goes_on))
    (tmp_path / "test_it.py").write_text(text)
    words = ["-m", "pytest", "-p", "tests.own_processes", "-p", "no:cacheprovider"]
    words += ["-c", os.devnull, f"--rootdir={tmp_path}"]
    words += [f"-n{processes}", "test_it.py"]
    env = {"PYTHONPATH": str(CHECKOUT), "TESTS_END_S": "0"}
    done = call(sys.executable, *words, cwd=tmp_path, env=env)
    assert done.returncode == wanted, done.stdout + done.stderr
    named = re.findall(r"^\d+: .*/pid, of test_it.py::test_it \(call\)$", done.stdout, re.M)
    assert len(named) == 1, done.stdout
    assert alive(tmp_path) == []
