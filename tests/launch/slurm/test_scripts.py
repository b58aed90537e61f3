"""What the scripts of slurm/ do alike, with Slurm's commands and Python as scripts beside them."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.submit import REPOSITORY, wait_until

# Python's part: where the run is, that it is not started again, and that it ended well.
PYTHON = """
case "$3" in
begin) touch begun; sleep 1; echo "$PWD/run" ;;
again) exit 1 ;;
end) exit "$5" ;;
esac
"""
COMMANDS = {
    "python": PYTHON,
    "srun": 'echo "$*" > step; while [ ! -e stopped ]; do sleep 0.1; done',
    "scancel": 'echo "$*" > stopped',
    "squeue": "date --date='now + 8 seconds' +%FT%T",
}


@pytest.fixture
def job(tmp_path):
    """Starts a batch script as Slurm does."""
    for name, text in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\ncd '{tmp_path}'\n{text}\n")
        (tmp_path / name).chmod(0o755)
    started = []

    def start(script: str, **env: str) -> subprocess.Popen:
        env = {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "MUSTER_PYTHON": str(tmp_path / "python"),
            "SLURM_SUBMIT_DIR": str(REPOSITORY),
            "SLURM_JOB_ID": "12",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_NTASKS": "2",
            **env,
        }
        argv = ["bash", str(REPOSITORY / "slurm" / script)]
        started.append(subprocess.Popen(argv, env=env, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_short_job_is_told_of_its_end_before_it_has_workers(job, tmp_path):
    """They are told when half of what was left is over."""
    process = job("multinode.sh")
    assert wait_until((tmp_path / "begun").exists)
    process.send_signal(signal.SIGUSR1)
    began = time.monotonic()
    assert process.wait(timeout=300) == 0
    assert (tmp_path / "stopped").read_text() == "--signal=USR2 --quiet 12\n"
    assert time.monotonic() - began > 2.0


@pytest.mark.parametrize("script", ["multinode.sh", "accelerate.sh", "multinode_manual.sh"])
@pytest.mark.parametrize("cores", [None, "4"])
def test_a_step_has_the_cores_of_its_job(job, tmp_path, script, cores):
    """srun takes one core per task where it is told so, whatever the job has."""
    process = job(script, **({"SLURM_CPUS_PER_TASK": cores} if cores else {}))
    assert wait_until(lambda: (step := tmp_path / "step").exists() and step.read_text())
    given = [word for word in (tmp_path / "step").read_text().split() if "cpus" in word]
    assert given == ([f"--cpus-per-task={cores}"] if cores else [])
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 0


@pytest.mark.parametrize("script", ["multinode.sh", "accelerate.sh"])
def test_one_core_per_node_is_not_what_a_script_asks_for(script):
    lines = Path(REPOSITORY / "slurm" / script).read_text().splitlines()
    assert not [line for line in lines if line.startswith("#SBATCH --cpus-per-task")]
