"""What a leader in its own job looks at before anything starts, outside of any Slurm."""

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


def test_a_heterogeneous_job_is_refused(tmp_path):
    """Its first component would train, and the others' nodes stay idle."""
    code, out, err = begin_job(tmp_path, SLURM_HET_SIZE="2")
    assert code == 2 and out == "" and "error: the job has 2 components" in err
    assert list(tmp_path.iterdir()) == []


def test_a_job_is_not_requeued_for_ever(tmp_path):
    code, _, err = begin_job(tmp_path, SLURM_RESTART_COUNT="4")
    assert code == 1 and "error: requeued 4 times; MUSTER_MAX_REQUEUES allows 3" in err
    code, _, err = begin_job(tmp_path, MUSTER_MAX_REQUEUES="a[$(id)]")
    assert code == 2 and "error: MUSTER_MAX_REQUEUES is 'a[$(id)]', not a number" in err
    assert list(tmp_path.iterdir()) == []


def test_requeued_job_numbers_attempts_after_those_already_made(tmp_path):
    """Else two attempts would have one number, and one of them no folder of its own."""
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
        ({}, {"queues": 2}, "it is one of several jobs for one run"),
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
    message = "this job was submitted by another version of Muster; submit it again "
    assert in_one_line(done.stderr) == f"error: {end['message']}\n"
    assert done.returncode == end["code"] == 2
    assert end["message"].startswith(f"{message}({path}: ") and field in end["message"]


REFUSED = [
    (["--dry-run"], "--dry-run is not for a script that is in its job already"),
    (["--detach"], "--detach is not for a script"),
    (["--partition", "gpu"], "options of sbatch stand before the script"),
    (["--launcher", "local"], "--launcher is not for a script"),
    (["--hosts", "node0"], "--hosts is not for a script"),
    (["--remote-dir", "/x"], "--remote-dir is not for a script"),
    (["--lr", "1e-3", "--", "true"], "--lr is a setting of the trainer"),
]


def test_all_problems_of_a_batch_job_are_named_at_once(tmp_path):
    words = ["--max-restarts", "-1", "--partition", "gpu", "--python", "/a/python"]
    code, _, err = begin_job(tmp_path, *words, "--", "/b/python", "none.py")
    starts = ("--task is a", "--max-restarts", "--python", "--partition", "none.py: No such")
    assert code == 2 and all(f"error: {start}" in err for start in starts), err


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_flag_without_use_in_a_job_is_refused(tmp_path, flags, message):
    code, out, err = begin_job(tmp_path, *flags)
    assert (code, out) == (2, "") and message in err
    assert list(tmp_path.iterdir()) == []


def test_help_in_a_job_starts_no_run(tmp_path):
    code, out, _ = begin_job(tmp_path, "--help")
    assert code == 0 and out.startswith("usage: sbatch slurm/")
    assert list(tmp_path.iterdir()) == []
