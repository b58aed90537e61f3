"""A run goes through few files: each is one that whoever reads the code has to open."""

import os
import subprocess
import sys

from muster import run_files
from muster.writing import read_json
from tests.launch.submit import REPOSITORY

MOST = 44  # launcher and first agent together; they were 67


def test_a_run_of_two_nodes_enters_few_files(tmp_path):
    (tmp_path / "t.py").write_text("print('here')\n")
    notes = tmp_path / "notes"
    notes.mkdir()
    walked = str(REPOSITORY / "tests" / "launch" / "walked")
    command = [sys.executable, str(REPOSITORY / "muster" / "command.py"), "run", "--run-id", "walk"]
    process = subprocess.Popen(
        [*command, "--nodes", "2", "--workers", "manual", "--", "t.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": walked, "MUSTER_TEST_WALK": str(notes)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "here" in output
    first = read_json(run_files.AGENT.path(tmp_path / "logs" / "walk", node=0))
    assert first is not None
    launcher, agent = (
        set((notes / str(pid)).read_text().split()) for pid in (process.pid, first["pid"])
    )
    files = sorted(launcher | agent)
    assert len(files) <= MOST, "\n".join([f"{len(files)} files:", *files])
