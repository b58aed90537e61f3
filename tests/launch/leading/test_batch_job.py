"""What a leader in its own job checks before anything starts, tested without Slurm."""

import json
import sys

import pytest

from launch.in_job import run_job
from launch.leading import batch_job
from launch.runs import run_record
from launch.slurm.current_job import CurrentJob
from launch.spec import LaunchSpec, Program
from muster import run_files
from muster.checkout import CHECKOUT
from muster.terminal import in_one_line
from tests.commands import call
from tests.written import write

JOB = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1"}


def begin_job(logs, *flags: str, **env: str) -> tuple[int, str, str]:
    argv = ["launch.leading.batch_job", "new", "--task", "synthetic", "--logs-dir", logs, *flags]
    done = call(sys.executable, "-m", *argv, cwd=CHECKOUT, env={**JOB, **env})
    return done.returncode, done.stdout, done.stderr


def test_requeued_job_numbers_attempts_after_those_already_made(tmp_path):
    """Otherwise two attempts would share a number, and one would have no folder of its own."""
    run_job.write_spec(LaunchSpec("run", tmp_path, Program(("t.py",)), max_restarts=5), {})
    ends = {"attempts/0/exit.json": {"code": 1}, "attempts/1/exit.json": {"code": 1}}
    write(tmp_path, {**ends, "exit.json": {"code": 3}})
    for number in (3, 4):
        current = CurrentJob(job_id="12", name="12", num_nodes=1, attempt=number - 2)
        spec, _ = batch_job.open_run(tmp_path, current)
        assert spec.attempt == number
    assert (tmp_path / "attempts" / "2" / "exit.json").read_text() == '{"code": 3}'


@pytest.mark.parametrize(
    ("change", "more", "field"),
    [
        ({"image": "x.sif"}, {}, "unknown field `image`"),
        ({"program": {"argv": ["t.py"], "mounts_of": []}}, {}, "unknown field `mounts_of`"),
        ({"program": {}}, {}, "missing required field `argv` - at `$.program`"),
        ({"join_s": "long"}, {}, "Expected `float`, got `str` - at `$.join_s`"),
        ({}, {"queues": 2}, "one of several jobs"),
    ],
)
def test_spec_of_another_version_ends_the_job_with_a_sentence(tmp_path, change, more, field):
    run_job.write_spec(LaunchSpec("run", tmp_path, Program(("t.py",))), {})
    path = run_files.SLURM.path(tmp_path)
    job = json.loads(path.read_text())
    write(tmp_path, {path.name: {**job, **more, "spec": {**job["spec"], **change}}})
    words = ["-m", "launch.leading.batch_job", "run", tmp_path]
    done = call(sys.executable, *words, cwd=CHECKOUT, env=JOB)
    end = run_record.read_end(tmp_path)
    assert in_one_line(done.stderr) == f"error: {end['message']}\n"
    assert done.returncode == end["code"] == 2
    assert f"({path}: " in end["message"] and field in end["message"]


def test_help_in_a_job_starts_no_run(tmp_path):
    code, out, _ = begin_job(tmp_path, "--help")
    assert code == 0 and out.startswith("usage: sbatch slurm/")
    assert list(tmp_path.iterdir()) == []
