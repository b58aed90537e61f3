"""Of the jobs that are queued for one run, each with an account of its own, one leads it."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.settings.launch import LaunchConfig
from configs.settings.remote import Settings, SlurmConfig, SshConfig
from launch import jobs
from launch.launchers.slurm import Slurm, build
from launch.runs import run_record, run_state
from launch.runs.run_state import Submission
from launch.slurm import batch_script, queues, run_job
from launch.slurm.current_job import CurrentJob
from launch.spec import LaunchSpec, Program
from launch.studies import array_job
from muster import run_files
from muster.checkout import CHECKOUT
from muster.errors import MusterError, UsageError
from tests.commands import call
from tests.configs.made import made
from tests.launch.run_folders import JOB, run_folder
from tests.written import write

TWO = {"partition": "short,main", "account": "x,y"}
QUEUED = JOB | {"job_ids": ["12", "13"]}


def launcher(**settings: str) -> Slurm:
    config = LaunchConfig(launcher="slurm")
    return build(Settings(config, SshConfig(), made(SlurmConfig, **settings)))


def spec_in(run_dir: Path) -> LaunchSpec:
    run_dir.mkdir(parents=True, exist_ok=True)
    return LaunchSpec(run_dir.name, run_dir, Program.module("train.worker"))


def submit(run_dir: Path) -> Submission:
    one = launcher(**TWO)
    return one.submit(spec_in(run_dir), one.assume())


def current(number: str, **more: int) -> CurrentJob:
    return CurrentJob(job_id=number, name=number, num_nodes=1, **more)


@pytest.fixture
def run(tmp_path) -> Path:
    """A run that is queued in jobs 12 and 13."""
    run_dir = run_folder(tmp_path, "run", QUEUED)
    run_job.write_spec(spec_in(run_dir), {"nproc": [1], "queues": 2})
    return run_dir


# what is requested


@pytest.mark.parametrize(("partition", "account", "requests"), [
    ("a,b", "x", [("a,b", "x")]),
    ("a,b", None, [("a,b", None)]),
    (None, "x", [(None, "x")]),
    ("a,b", "x,y", [("a", "x"), ("b", "y")]),
    ("a, b,c", "x,y,x", [("a,c", "x"), ("b", "y")]),
    ("a,b", "x,x", [("a,b", "x")]),
])  # fmt: skip
def test_one_job_is_queued_for_each_account(partition, account, requests):
    config = SlurmConfig(partition=partition, account=account, time="30")
    assert [(one.partition, one.account) for one in config.queues] == requests
    assert {one.time for one in config.queues} == {"30"}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz")), min_size=1))
def test_each_partition_has_the_account_that_stands_in_its_place(pairs):
    partitions, accounts = (",".join(names) for names in zip(*pairs, strict=True))
    asked = SlurmConfig(partition=partitions, account=accounts).queues
    found = [(name, one.account) for one in asked for name in one.partition.split(",")]
    assert sorted(found) == sorted(pairs)
    assert len(asked) == len({account for _, account in pairs})


@pytest.mark.parametrize(("partition", "count"), [(None, "no"), ("a", "1"), ("a,b,c", "3")])
def test_accounts_that_are_not_as_many_as_partitions_are_refused(partition, count):
    with pytest.raises(UsageError) as caught:
        SlurmConfig(partition=partition, account="x,y")
    assert str(caught.value) == (
        f"--account x,y has 2 accounts, and --partition {count} partitions; give one account, or "
        "one for each partition"
    )


def test_a_dry_run_shows_each_job(slurm, tmp_path):
    one = launcher(**TWO)
    shown = one.show(spec_in(tmp_path / "run"), one.assume())
    assert re.findall("#SBATCH --(account|partition)=(.*)", shown) == [
        ("account", "x"), ("partition", "short"), ("account", "y"), ("partition", "main"),
    ]  # fmt: skip
    assert shown.count("launch.leading.batch_job run ") == 2
    assert "# the first of these jobs to start leads the run; it cancels the others" in shown


def test_refused_job_is_named_with_its_partition(slurm):
    slurm.would_refuse("--account=y", "sbatch: error: invalid account")
    with pytest.raises(UsageError) as caught:
        launcher(**TWO).probe()
    assert str(caught.value) == (
        "--partition main --account y: Slurm would not take this job: invalid account; sinfo shows "
        "what the cluster has"
    )


def test_a_sweep_and_the_doctor_take_one_account(slurm):
    one = launcher(**TWO)
    rows = one.check_nodes(one.assume(), {})
    assert any("--account x,y: nodes are checked in one job; name one" in row.line for row in rows)
    assert slurm.calls("srun") == []

    line = replace(one.settings, slurm=SlurmConfig(**TWO))
    sweep = type("Two", (), {"first": line, "cells": ()})()
    with pytest.raises(UsageError, match="--account x,y: the runs become one job array, which has"):
        array_job.suits(sweep, 1)


# submission


def test_the_numbers_of_all_jobs_are_known_while_they_wait(slurm, tmp_path, capsys):
    submission = submit(tmp_path / "run")
    assert (submission.job_id, submission.name) == ("12", "12 or 13")
    scripts = sorted((tmp_path / "run" / "submitit").glob("*_submission.sh"))
    given = [re.findall("--(?:account|partition)=(.*)", path.read_text()) for path in scripts]
    assert given == [["x", "short"], ["y", "main"]]
    run_files.CONFIG.path(tmp_path / "run").touch()
    slurm.queue_is(
        "12|12|PENDING|2026-11-27T12:00:00|N/A|Priority",
        "13|13|PENDING|2026-11-27T11:00:00|N/A|Resources",
    )
    state = run_state.state_of(tmp_path / "run")
    assert (state.word, state.detail) == ("pending", "job 12 or 13; Resources")
    assert state.notes[1].startswith("expected start: 2026-11-27T11:00:00")
    for number in ("12", "13"):
        assert jobs._find(tmp_path, number) == tmp_path / "run"


def test_a_job_that_is_refused_leaves_no_other_in_the_queue(slurm, tmp_path):
    slurm.after_submission(12, "echo 'sbatch: error: Job violates policy' > refusal")
    with pytest.raises(MusterError, match=r"Slurm does not take the job: .* policy"):
        submit(tmp_path / "run")
    assert slurm.calls("scancel") == ["scancel 12"]


def test_ctrl_c_between_submissions_cancels_submitted_jobs(slurm, tmp_path, monkeypatch):
    submit_one = batch_script.submit

    def interrupted(*args: object) -> list[str]:
        if slurm.calls("sbatch"):
            raise KeyboardInterrupt
        return submit_one(*args)

    monkeypatch.setattr(batch_script, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit(tmp_path / "run")
    assert slurm.calls("scancel") == ["scancel 12"]


def test_a_job_that_cannot_be_withdrawn_is_named(slurm, tmp_path, capsys):
    slurm.after_submission(12, "echo no > refusal; touch silent")
    with pytest.raises(MusterError, match="Slurm does not"):
        submit(tmp_path / "run")
    note = "note: job 12 is not cancelled: Slurm does not answer: .*; end it with scancel"
    assert re.search(note, capsys.readouterr().err)


def test_when_the_first_has_started_no_other_is_queued(slurm, tmp_path):
    claim = run_files.FIRST_JOB.path(tmp_path / "run")
    slurm.after_submission(12, f"printf 12 > '{claim}'")
    assert submit(tmp_path / "run").name == "12"
    assert slurm.calls("scancel") == []
    assert len([*(tmp_path / "run" / "submitit").glob("*_submission.sh")]) == 1


@pytest.mark.parametrize(("first", "other"), [("12", "13"), ("13", "12")])
def test_job_that_starts_before_numbers_are_recorded_withdraws_the_others(
    slurm, tmp_path, first, other
):
    """Neither that job nor any that is queued could know of all."""
    claim = run_files.FIRST_JOB.path(tmp_path / "run")
    slurm.after_submission(13, f"printf {first} > '{claim}'")
    assert submit(tmp_path / "run").name == first
    assert slurm.calls("scancel") == [f"scancel {other}"]
    assert run_record.read_job(tmp_path / "run")["job_id"] == first


def test_the_numbers_are_recorded_even_if_a_leader_has_begun(slurm, run):
    spec = spec_in(run)
    (run / run_files.JOB.pattern).unlink()
    assert queues.is_first(run, current("15"))
    run_record.begin(spec, "slurm", "15", cluster="here")
    assert queues.record(spec, ["14", "15"], "here", os.environ) == ["15"]
    job = run_record.read_job(run)
    assert (job["job_id"], job["job_ids"]) == ("15", ["14", "15"])
    assert "scancel 14" in slurm.calls("scancel")


# in the jobs


def test_the_first_to_start_leads_and_cancels_the_others(slurm, run):
    slurm.queue_is("13|13|RUNNING|N/A|N/A|None", "12|12|PENDING|N/A|N/A|Priority")
    assert queues.is_first(run, current("13"))
    assert slurm.calls("scancel") == ["scancel 12"]
    assert run_record.first_job(run) == "13"
    assert not [*run.glob("*.partial")]
    assert not queues.is_first(run, current("12"))
    assert len(slurm.calls("scancel")) == 1


def test_a_job_that_starts_before_any_number_is_recorded_cancels_nothing(slurm, run):
    write(run, {run_files.JOB.pattern: JOB | {"job_id": run_record.NOT_YET}})
    assert queues.is_first(run, current("13"))
    assert slurm.calls("scancel") == []


def test_a_requeued_job_keeps_its_claim(slurm, run):
    assert queues.is_first(run, current("13"))
    assert queues.is_first(run, current("13", attempt=1))
    assert not queues.is_first(run, current("12"))


def test_a_claim_that_cannot_be_read_is_an_error(slurm, run):
    """Such as one that another program has emptied: no job may end as if another led the run."""
    write(run, {run_files.FIRST_JOB.pattern: ""})
    with pytest.raises(MusterError, match=r"\.first-job does not name the job that leads the run"):
        queues.is_first(run, current("12"))
    assert not [*run.glob("*.partial")]


def test_a_run_with_one_job_needs_no_claim(slurm, tmp_path):
    one = launcher(account="x", partition="a,b")
    one.submit(spec_in(tmp_path / "run"), one.assume())
    assert not run_job.is_one_of_several(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(20))
def test_one_of_jobs_that_start_at_once_leads(slurm, run, repeat):
    numbers = [str(12 + index) for index in range(8)]
    with ThreadPoolExecutor(8) as pool:
        firsts = [*pool.map(lambda number: queues._claim(run, number), numbers)]
    assert len({*firsts}) == 1 and run_record.first_job(run) == firsts[0]


@pytest.mark.slow
@pytest.mark.parametrize("repeat", range(10))
def test_a_job_that_starts_while_the_numbers_are_recorded_leads_alone(slurm, tmp_path, repeat):
    """One of the two sees both, and no record is left of another leader."""
    spec = spec_in(tmp_path / "run")
    run_job.write_spec(spec, {"nproc": [1], "queues": 2})

    def start() -> None:
        assert queues.is_first(spec.run_dir, current("13"))
        run_record.begin(spec, "slurm", "13", cluster="here")

    job = get_context("fork").Process(target=start)
    job.start()
    queues.record(spec, ["12", "13"], "here", os.environ)
    job.join()
    assert job.exitcode == 0
    assert "scancel 12" in slurm.calls("scancel")
    assert "scancel 13" not in slurm.calls("scancel")
    assert run_record.read_job(spec.run_dir)["job_id"] == "13"


def test_job_that_starts_second_ends_well_and_changes_nothing(run):
    """Without any Slurm: it asks for nothing."""
    write(run, {run_files.FIRST_JOB.pattern: "13"})
    before = sorted(path.stat().st_mtime_ns for path in run.iterdir())
    argv = [sys.executable, "-m", "launch.leading.batch_job", "run", run]
    env = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "1"}
    done: subprocess.CompletedProcess[str] = call(*argv, cwd=CHECKOUT, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "job 13 was the first to start, and leads the run; this one ends\n"
    assert sorted(path.stat().st_mtime_ns for path in run.iterdir()) == before


def test_the_leader_s_record_keeps_the_numbers_of_the_others(slurm, run):
    run_record.begin(spec_in(run), "slurm", "13", cluster="here")
    job = run_record.read_job(run)
    assert (job["job_id"], job["job_ids"]) == ("13", ["12", "13"])
    assert jobs._find(run.parent, "12") == run


# who looks at them


STATES = [
    ("PENDING", "RUNNING", "running", "job 13"),
    ("COMPLETING", "PENDING", "completing", "job 12"),
    ("CANCELLED", "PENDING", "pending", "job 13"),
    ("FAILED", "PENDING", "pending", "job 13"),
    ("CANCELLED", "CANCELLED", "stopped", "exit code 143: cancelled before it began"),
    ("CANCELLED", "TIMEOUT", "failed", "exit code 1: Slurm says TIMEOUT of job 13"),
    ("COMPLETED", "NODE_FAIL", "failed", "exit code 1: Slurm says NODE_FAIL of job 13"),
]


@pytest.mark.parametrize(("one", "other", "word", "detail"), STATES)
def test_run_state_is_that_of_job_closest_to_leading(slurm, run, one, other, word, detail):
    slurm.queue_is(f"12|12|{one}|N/A|N/A|None", f"13|13|{other}|N/A|N/A|None")
    state = run_state.state_of(run)
    assert (state.word, state.detail) == (word, detail)


def test_once_one_leads_the_others_say_nothing_of_the_run(slurm, run):
    write(run, {run_files.FIRST_JOB.pattern: "13"})
    slurm.queue_is("12|12|RUNNING|N/A|N/A|None", "13|13|PENDING|N/A|N/A|BeginTime")
    state = run_state.state_of(run)
    assert (state.word, state.detail) == ("pending", "job 13; BeginTime")


@pytest.mark.parametrize("text", ["", "12,13", "x", "\x1b[2J"])
def test_a_claim_that_is_no_number_is_none(run, text):
    write(run, {run_files.FIRST_JOB.pattern: text})
    assert run_record.jobs_of(run, QUEUED) == ["12", "13"]


def test_cancel_ends_all_jobs(slurm, run):
    slurm.queue_is("12|12|PENDING|N/A|N/A|Priority", "13|13|PENDING|N/A|N/A|Priority")
    lines: list[str] = []
    run_state.cancel(run, lines.append)
    assert slurm.calls("scancel") == ["scancel 12", "scancel 13"]
    assert lines == ["run: stopped"]
