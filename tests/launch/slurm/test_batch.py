"""What a batch script asks before its workers start, outside of any Slurm."""

import os
import subprocess
import sys

from tests.launch.submit import REPOSITORY

JOB = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1"}


def begin(logs, *flags: str, **env: str) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", "launch.slurm.batch", "begin", "torchrun"]
    argv += ["--task", "synthetic", "--logs-dir", str(logs), *flags]
    done = subprocess.run(
        argv,
        cwd=REPOSITORY,
        env={**os.environ, **JOB, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_heterogeneous_job_is_refused(tmp_path):
    """Its first component would train, and the others' nodes stay idle."""
    code, out, err = begin(tmp_path, SLURM_HET_SIZE="2")
    assert code == 2 and out == "" and "error: the job has 2 components" in err
    assert list(tmp_path.iterdir()) == []


def test_fewer_cores_than_workers_are_said(tmp_path):
    few = "note: 1 core for the 4 workers of a node; ask for more with --cpus-per-task"
    code, _, err = begin(tmp_path, "--nproc-per-node", "4", SLURM_CPUS_ON_NODE="1")
    assert code == 0 and few in err
    code, _, err = begin(tmp_path, SLURM_CPUS_ON_NODE="1", SLURM_GPUS_ON_NODE="4")
    assert code == 0 and few in err
    code, _, err = begin(tmp_path, "--nproc-per-node", "4", SLURM_CPUS_ON_NODE="4")
    assert code == 0 and "note" not in err
