"""A session ends the processes that its tests have left, names them, and fails."""

import os
import re
import sys

from muster.checkout import CHECKOUT
from tests.commands import call
from tests.launch.submit import alive

TEST = """
import pathlib, subprocess, sys, time

def test_it():
    code = "import pathlib, time; pathlib.Path('started').touch(); time.sleep(10_000)"
    subprocess.Popen([sys.executable, "-c", code, pathlib.Path.cwd()], start_new_session=True)
    while not pathlib.Path("started").exists():
        time.sleep(0.01)
"""


def test_no_process_outlives_the_session(tmp_path):
    (tmp_path / "test_it.py").write_text(TEST)
    words = ["-m", "pytest", "-p", "tests.own_processes", "-p", "no:cacheprovider"]
    words += ["-c", os.devnull, f"--rootdir={tmp_path}", "-n1", "test_it.py"]
    env = {"PYTHONPATH": str(CHECKOUT), "TESTS_END_S": "0"}
    done = call(sys.executable, *words, cwd=tmp_path, env=env)
    assert done.returncode == 1, done.stdout + done.stderr
    named = re.findall(r"^\d+: .*, of test_it.py::test_it \(call\)$", done.stdout, re.M)
    assert len(named) == 1, done.stdout
    assert alive(tmp_path) == []
