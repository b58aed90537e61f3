"""A real Slurm that falls silent, and jobs that are pending or requeued: nothing is called over."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from launch.bed import daemons
from launch.bed import slurm as bed_slurm
from tests.cluster import ways
from tests.cluster.beds import REPOSITORY, bring_up
from tests.cluster.conftest import USUAL
from tests.cluster.ways import Run, finish, start
from tests.launch.submit import SUBMIT, wait_until

JOBS = str(REPOSITORY / "launch" / "jobs.py")
SCRIPT = ways.sbatch("multinode.sh")


def jobs(bed, logs: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return bed.run(sys.executable, JOBS, "--logs-dir", str(logs), *words, timeout_s=180)


def test_a_controller_that_is_down_ends_nothing(bed, tmp_path):
    run = Run(bed, ways.slurm, tmp_path)
    try:
        controller().kill()
        status = jobs(bed, tmp_path, "status").stdout
        assert ": unknown (job " in status and "does not answer" in status
        assert run.process.poll() is None and run.left() != []
        bring_up(*USUAL)
        said = jobs(bed, tmp_path, "cancel").stdout
        assert said.endswith(": stopped\n"), said
        run.gone_after_s(10)
        code, out, err = run.end()
        assert code == 75 and "completed" not in out, out + err
    finally:
        bring_up(*USUAL)
        ways.cancel_all(bed)


def controller() -> psutil.Process:
    pid = daemons.pid(bed_slurm.CONTROLLER)
    assert pid is not None
    return psutil.Process(pid)


def test_a_pending_job_is_cancelled(bed, tmp_path):
    flags = ["--task", "synthetic", "--logs-dir", str(tmp_path), "--slurm", "begin=now+1hour"]
    code, out, err = finish(start(bed, [sys.executable, SUBMIT, "--launcher", "slurm", *flags]))
    assert code == 0, out + err
    assert ": pending (job " in (said := jobs(bed, tmp_path, "status").stdout) and "Begin" in said
    done = jobs(bed, tmp_path, "cancel")
    assert done.stdout.endswith(": stopped\n"), done
    assert not bed.run("squeue", "--noheader").stdout.strip()
    assert "is over already: stopped" in jobs(bed, tmp_path, "cancel").stdout


def test_a_requeued_job_is_cancelled_before_it_starts_again(bed, tmp_path):
    run = Run(bed, SCRIPT, tmp_path)
    try:
        job = json.loads((run.run_dir / "job.json").read_text())
        assert (job["cluster"], job["attempt"]) == ("muster", 0)
        bed.run("scontrol", "requeuehold", job["job_id"])
        assert wait_until((run.run_dir / "exit.json").exists, timeout_s=60)
        held = "pending"
        assert wait_until(
            lambda: f"{run.run_dir.name}: {held}" in jobs(bed, tmp_path, "status").stdout, 60
        ), jobs(bed, tmp_path, "status")
        done = jobs(bed, tmp_path, "cancel")
        assert done.stdout.endswith(": stopped\n"), done
        assert not bed.run("squeue", "--noheader").stdout.strip()
    finally:
        ways.cancel_all(bed)
        finish(run.process)


def test_a_step_has_all_cores_that_its_job_has(bed, tmp_path):
    def whole_nodes(bed, nodes, *flags):
        argv = SCRIPT(bed, nodes, *flags)
        return [*argv[:2], "--exclusive", *argv[2:]]

    run = Run(bed, whole_nodes, tmp_path)
    try:
        assert {run.agent(node).environ()["SLURM_CPUS_ON_NODE"] for node in range(4)} == {"8"}
    finally:
        ways.cancel_all(bed)
        finish(run.process)


def test_a_step_has_the_gpus_and_their_cores(other_bed, tmp_path):
    """One worker for each GPU; how many cores go with it is said per GPU, or by the cluster."""
    if bed_slurm.version() < bed_slurm.PRETENDS_GPUS:
        pytest.skip(f"Slurm {bed_slurm.version()} does not pretend GPUs")

    def with_gpus(bed, nodes, *flags):
        argv = SCRIPT(bed, 2, *flags)
        return [*argv[:2], "--gpus-per-node=2", "--cpus-per-gpu=3", *argv[2:]]

    bed = other_bed("--nodes", "2", "--gpus", "2")
    run = Run(bed, with_gpus, tmp_path)  # four ranks on two nodes
    try:
        seen = [run.agent(node).environ() for node in range(2)]
        assert [one["SLURM_CPUS_ON_NODE"] for one in seen] == ["6", "6"]
        assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["0,1", "0,1"]
    finally:
        ways.cancel_all(bed)
        finish(run.process)
