"""The substitute for `python -m` has its own temporary folder, and workers have the user's."""

import json
import os
import subprocess
import sys

import pytest

from muster.checkout import CHECKOUT
from tests.commands import call

TOOL = """
import json, os, subprocess, sys, tempfile
show = "import tempfile; print(tempfile.gettempdir())"
child = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True)
print(json.dumps([tempfile.gettempdir(), child.stdout.strip()]))
"""


def test_torchrun_uses_muster_scratch_and_workers_use_tmpdir(tmp_path):
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "tool.py").write_text(TOOL)
    folders = [tmp_path / "scratch", tmp_path / "users"]
    for folder in folders:
        folder.mkdir()
    env = {"MUSTER_SCRATCH": str(folders[0]), "TMPDIR": str(folders[1])}
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "muster" / "run_module.py"), "tool"],
        env={**os.environ, **env, "PYTHONPATH": str(tmp_path / "packages")},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert json.loads(done.stdout) == [str(one) for one in folders]


def test_torchrun_asks_nobody_for_this_machines_name(tmp_path):
    """If the name server does not answer, each query takes seconds, and torchrun makes seven."""
    tool = "import socket\nsocket.gethostbyaddr = None\nprint(socket.getfqdn('node0'))\n"
    (tmp_path / "tool.py").write_text(tool)
    run_module = CHECKOUT / "muster" / "run_module.py"
    done = call(sys.executable, run_module, "tool", env={"PYTHONPATH": str(tmp_path)})
    assert (done.stdout, done.stderr) == ("node0\n", "")


@pytest.mark.parametrize(
    "start", [["launch/jobs.py", "list"], ["muster/run_module.py", "train.report"]]
)
def test_a_python_without_packages_is_refused_in_one_line_and_a_tip(start):
    done = call(sys.executable, "-S", CHECKOUT / start[0], start[1])
    assert (done.returncode, done.stderr.count("\n"), done.stderr.count("\ntip: ")) == (2, 2, 1)
    assert done.stderr.startswith("error: ") and f"{sys.executable} has no " in done.stderr


@pytest.mark.parametrize(("options", "code"), [([], 0), (["-S"], 1)])
def test_a_python_is_asked_whether_it_has_all_packages(options, code):
    """The question is that of `launch/own_python.sh`; with -S, no installed package is found."""
    run_module = CHECKOUT / "muster" / "run_module.py"
    done = call(sys.executable, *options, "-P", run_module, "muster.extras")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
