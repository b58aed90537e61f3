"""A job that Slurm has restarted finds its own run."""

import os

import pytest

from launch.in_job import run_job
from launch.slurm.current_job import CurrentJob
from tests.written import write


@pytest.mark.needs("root")  # which alone may give files away
def test_a_restarted_job_goes_on_with_no_run_of_another_user(tmp_path):
    job = {"launcher": "slurm", "job_id": "12", "cluster": "here", "host": "node0", "pid": 1}
    for number, name in enumerate(("earlier", "mine", "theirs")):
        write(tmp_path, {f"{name}/job.json": {**job, "started_unix_s": float(number)}})
    os.chown(tmp_path / "theirs" / "job.json", 12_345, 12_345)
    current = CurrentJob(job_id="12", name="12", num_nodes=1, cluster="here")
    assert run_job.run_of_job(tmp_path, current) == tmp_path / "mine"
