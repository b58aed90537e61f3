"""A run on Slurm goes through few files, where it is submitted and in its job."""

import sys

import pytest

from muster import run_files
from muster.checkout import CHECKOUT
from muster.writing import read_json
from tests.commands import begin, finish
from tests.launch.walked import entered, traced

pytestmark = pytest.mark.slow

MOST_AT_SUBMISSION = 40  # in a folder without git, too; one of them is the table of ends
MOST_IN_JOB = 35


def test_a_run_on_slurm_enters_few_files(cluster, tmp_path):
    (tmp_path / "t.py").write_text("print('here')\n")
    command = [sys.executable, str(CHECKOUT / "muster" / "command.py"), "run", "--run-id", "walk"]
    flags = ["--launcher", "slurm", "--wait", "--nodes", "2", "--workers", "manual"]
    env = {**cluster.env, **traced(tmp_path)}
    process = begin(*command, *flags, "--", "t.py", cwd=tmp_path, env=env)
    code, _, err = finish(process)
    assert code == 0, err
    run_dir = tmp_path / "logs" / "walk"
    leader, agent = (
        read_json(path)["pid"]
        for path in (run_files.JOB.path(run_dir), run_files.AGENT.path(run_dir, node=0))
    )
    at_submission, in_job = entered(tmp_path, process.pid), entered(tmp_path, leader, agent)
    shown = "\n".join([*at_submission, "in the job:", *in_job])
    assert len(at_submission) <= MOST_AT_SUBMISSION, f"{len(at_submission)}\n{shown}"
    assert len(in_job) <= MOST_IN_JOB, f"{len(in_job)}\n{shown}"
