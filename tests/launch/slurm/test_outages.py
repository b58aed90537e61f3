"""If Slurm does not answer, the state of a job is unknown; a requeued job is not over."""

import json
import subprocess
import sys
import threading
from datetime import datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.ends import Kind
from launch.runs import run_state, waiting
from launch.runs.run_state import Submission, Watchers
from launch.slurm.run_watcher import SlurmRunWatcher
from launch.spec import LaunchSpec
from muster.checkout import CHECKOUT
from muster.errors import MusterError
from muster.orderly_stop import NOTICE
from tests.commands import begin, call, finish
from tests.launch.pretended import PROGRAM
from tests.launch.run_folders import DONE_IN_ORDER, JOB, jobs, leader, run_folder
from tests.launch.submit import SUBMIT
from tests.written import write


def start(logs: Path, *flags: str, **env: str) -> subprocess.Popen:
    argv = [sys.executable, SUBMIT, "--launcher", "slurm", "--task", "synthetic"]
    argv += ["--logs-dir", str(logs), "--run-id", "run", *flags]
    return begin(*argv, env=env)


def test_a_job_that_slurm_has_forgotten_has_not_succeeded(slurm, tmp_path):
    slurm.forget()
    code, _, err = finish(start(tmp_path, "--wait"))
    assert code == 1 and "Slurm no longer has job 12" in err


@pytest.mark.parametrize(("state", "code"), [("CANCELLED", 143), ("OUT_OF_MEMORY", 1)])
def test_waiting_command_records_no_end_of_a_job(slurm, tmp_path, state, code):
    """The job never had a leader, for example because it was cancelled while pending."""
    slurm.job_is(state)
    returned, out, err = finish(start(tmp_path, "--wait", "--json"))
    assert returned == code, err
    waited = json.loads(out.splitlines()[-1])
    assert waited["kind"] == "ended" and not (tmp_path / "run" / "exit.json").exists()
    assert json.loads((tmp_path / "run" / "job.json").read_text())["job_id"] == "12"
    status = json.loads(jobs(tmp_path, "status", "run", "--json")[1])
    assert status["end"].items() <= waited.items()


def test_detached_command_returns_number_of_the_job_or_refusal(slurm, tmp_path):
    code, out, err = finish(start(tmp_path, "--detach", "--wait", "--json"))
    (submitted,) = map(json.loads, out.splitlines())
    assert (code, submitted["kind"], submitted["job_id"]) == (0, "submitted", "12"), err
    assert "muster jobs cancel run" in err
    slurm.job_is("FAILED")
    slurm.refuses("sbatch: error: Job violates accounting policy")
    flags = ("--detach", "--overwrite", "--json")
    code, out, err = finish(start(tmp_path, *flags))
    assert code == 1 and "Job violates accounting policy" in err
    assert [json.loads(line)["kind"] for line in out.splitlines()] == ["ended", "error"]


def test_a_job_is_cancelled_when_slurm_answers_again(slurm, tmp_path, monkeypatch):
    monkeypatch.setattr("launch.slurm.run_watcher.JOB_ASKED_AFTER_SILENCE_S", 0.0)
    clock = SimpleNamespace(monotonic=count(0.0, 50.0).__next__, sleep=lambda seconds: None)
    monkeypatch.setattr("launch.slurm.controller.time", clock)
    run, lines = run_folder(tmp_path, "run", JOB), []
    slurm.silence()
    assert run_state.state_of(run).word == "unknown"
    with pytest.raises(MusterError, match="Slurm does not answer"):
        run_state.cancel(run, lines.append)
    assert lines.pop().startswith("Slurm does not answer") and not (run / "exit.json").exists()

    def say(text: str) -> None:
        lines.append(text)
        if len(lines) == 1:
            slurm.answer_again()

    run_state.cancel(run, say)
    assert slurm.calls("scancel") and lines[-1] == "run: stopped"
    assert "trying again" in lines[0] and "Unable to contact slurm controller" in lines[0]


def test_waiting_command_goes_on_while_the_controller_is_down(slurm, tmp_path, monkeypatch):
    words = []

    class Watched(SlurmRunWatcher):
        def state(self, run_dir, job, end):
            seen = super().state(run_dir, job, end)
            words.append(seen.word)
            match words:
                case ["running"]:
                    slurm.silence()
                case ["running", "unknown"]:
                    slurm.job_is("CANCELLED")
                    slurm.answer_again()
            return seen

    for name in ("JOB_ASKED_EVERY_S", "JOB_ASKED_AFTER_SILENCE_S"):
        monkeypatch.setattr(f"launch.slurm.run_watcher.{name}", 0.0)
    run = run_folder(tmp_path, "run", JOB)
    slurm.job_is("RUNNING")
    job = Submission("12", "here", Watched(cluster="here"))
    assert job.follow(LaunchSpec("run", run, PROGRAM)).word == "stopped"
    assert words[:3] == ["running", "unknown", "stopped"]


FAILED = {"code": 1, "message": "boom", "cause": "program"}


@pytest.mark.parametrize("outage", ["silent", "another cluster"])
def test_recorded_end_counts_where_slurm_cannot_be_asked(slurm, tmp_path, outage, capsys):
    """Unless the job may have been requeued."""
    failed = run_folder(tmp_path, "failed", JOB, FAILED)
    noticed = run_folder(tmp_path, "noticed", JOB, DONE_IN_ORDER)
    write(noticed, {"stopped.json": {"why": NOTICE}})
    lost = run_folder(tmp_path, "lost", JOB, {**FAILED, "cause": Kind.NODE_LOST.word})
    slurm.silence() if outage == "silent" else slurm.is_cluster("elsewhere")
    states = run_state.states_of([failed, noticed, lost], Watchers())
    assert states[0].word == "failed"
    assert [state.is_over for state in states] == [True, False, False]
    assert waiting.wait(failed, 10.0) == 1
    assert capsys.readouterr().out == "failed: failed (exit code 1: boom)\n"


def test_a_suspended_job_is_shown_as_suspended(slurm, tmp_path):
    run = run_folder(tmp_path, "run", JOB)
    slurm.job_is("SUSPENDED")
    assert run_state.state_of(run).word == "suspended"


def test_a_job_that_is_over_is_left_alone(slurm, tmp_path):
    run, lines = run_folder(tmp_path, "run", JOB, DONE_IN_ORDER), []
    slurm.job_is("FAILED")
    run_state.cancel(run, lines.append)
    slurm.forget()
    run_state.cancel(run, lines.append)
    assert lines == ["run has already ended: stopped"] * 2 and slurm.calls("scancel") == []


def test_a_job_of_another_cluster_is_not_touched(slurm, tmp_path):
    run = run_folder(tmp_path, "run", JOB)
    slurm.is_cluster("elsewhere")
    assert run_state.state_of(run).word == "elsewhere"
    with pytest.raises(MusterError, match=r"job 12 .*cluster here"):
        run_state.cancel(run, lambda text: None)
    assert slurm.calls("scancel") == []


BY_HAND = "/home/me/muster-12.out"
PART = "/logs/sweep/submissions/001/submitit/"
BEFORE, AFTER = (datetime.fromtimestamp(1.0 + seconds).isoformat() for seconds in (-5.0, 500.0))
# The job's output in the record of a run whose leader began at 1.0 s; then Slurm's values for
# job 12: its output, its start, and how often it was restarted; and the state of the run.
RECOGNIZED = [
    (None, "{run}/submitit/%j_0_log.out", AFTER, 0, "running"),  # of an earlier version
    (None, "/elsewhere/run/submitit/%j_0_log.out", AFTER, 0, "unknown"),
    ("{run}/submitit/", "{run}/submitit/12_0_log.out", AFTER, 0, "running"),
    ("{run}/submitit/", "{run}-2/submitit/12_0_log.out", BEFORE, 1, "lost"),
    ("{run}/submitit/", "", BEFORE, 1, "lost"),
    (PART, f"{PART}%A_%a_0_log.out", AFTER, 0, "running"),
    ("/100%/submitit/", "/100%%/submitit/%j_0_log.out", AFTER, 0, "running"),
    ("/100%%/submitit/", "/100%%/submitit/12_0_log.out", AFTER, 0, "running"),
    (BY_HAND, BY_HAND, BEFORE, 0, "running"),
    (BY_HAND, BY_HAND, AFTER, 1, "running"),  # restarted, and its leader has not begun yet
    (BY_HAND, BY_HAND, AFTER, 0, "lost"),
    (BY_HAND, BY_HAND, "N/A", 0, "lost"),  # another job, which waits
    (BY_HAND, "/home/me/other-12.out", BEFORE, 0, "lost"),
]


@pytest.mark.parametrize(("recorded", "output", "start", "restarts", "word"), RECOGNIZED)
def test_job_that_has_the_number_of_a_run_is_not_taken_for_it(
    slurm, tmp_path, monkeypatch, recorded, output, start, restarts, word
):
    """For example, a new installation of Slurm numbers jobs from 1 again."""
    monkeypatch.setattr("launch.slurm.run_watcher.JOB_ASKED_EVERY_S", 0.0)
    run, lines = run_folder(tmp_path, "run", JOB), []
    if recorded is not None:
        write(run, {"slurm.json": {"nproc": [1], "output": recorded.format(run=run)}})
    slurm.prints_to(output.format(run=run), restarts)
    slurm.job_is("RUNNING", start=start)
    state = run_state.state_of(run)
    assert (state.word, state.is_over) == (word, word == "lost")
    if word == "unknown":
        assert state.detail.endswith("; if it is, end it with: scancel 12")
        with pytest.raises(MusterError, match=r"run was not cancelled: .*: scancel 12"):
            run_state.cancel(run, lines.append)
    else:
        run_state.cancel(run, lines.append)
        # a moment ago it may still have been the run's job
        SlurmRunWatcher(cluster="here").stop(run, JOB, lines.append)
    assert bool(slurm.calls("scancel")) == (word == "running")


def test_job_number_means_its_latest_run_on_one_cluster(slurm, tmp_path):
    for name, job in [("a", JOB), ("b", JOB), ("c", {**JOB, "cluster": "elsewhere"})]:
        run_folder(tmp_path, f"run-{name}", job)
    (tmp_path / "run-c" / "config.yaml").unlink()
    slurm.prints_to(tmp_path / "run-b" / "submitit" / "12_0_log.out")
    slurm.job_is("RUNNING")
    _, out, err = jobs(tmp_path, "status", "12")
    assert out.startswith("run-b: running (job 12)"), err
    (tmp_path / "run-c" / "config.yaml").touch()
    code, _, err = jobs(tmp_path, "status", "12")
    assert code == 2 and "'12'" in err and ": run-c, run-b" in err


def test_cancel_during_submission_waits_for_number_of_job(slurm, tmp_path):
    """sbatch takes as long as a busy controller does."""
    run, lines = run_folder(tmp_path, "run", JOB | leader(launcher="slurm", job_id="")), []
    assert run_state.state_of(run).word == "submitting"
    (run / "new.json").write_text(json.dumps(JOB))
    timer = threading.Timer(1.0, (run / "new.json").rename, [run / "job.json"])
    timer.start()
    run_state.cancel(run, lines.append)
    timer.join()
    assert slurm.calls("scancel") == ["scancel 12"] and lines == ["run: stopped"]


def test_a_run_that_was_just_detached_is_cancelled(tmp_path):
    """As soon as the terminal is back, before anything has started."""
    code = (
        "import pathlib, sys, time\n"
        "from launch.runs import run_record\n"
        "from launch.spec import LaunchSpec, Program\n"
        "spec = LaunchSpec('run', pathlib.Path(sys.argv[1]), Program(()))\n"
        "run_record.record_launch(spec, [], 'local', '')\n"
        "if run_record.go_on_in_background(spec): time.sleep(10_000)\n"
    )
    run, lines = run_folder(tmp_path, "run"), []
    assert call(sys.executable, "-c", code, run, cwd=CHECKOUT).returncode == 0
    assert run_state.state_of(run).word == "running"
    run_state.cancel(run, lines.append)
    assert lines == ["run: stopped"] and run_state.state_of(run).is_over


def test_flag_overrides_sbatch_variable_and_account_is_passed_on(slurm, tmp_path):
    env = {"SBATCH_ACCOUNT": "me", "SBATCH_PARTITION": "mine", "SBATCH_WAIT": "1"}
    env |= {"SLURM_JWT": "token", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "3"}
    flags = ["--partition", "main"]
    slurm.forget()  # job 7 is over, and only its variables are left
    code, out, err = finish(start(tmp_path, *flags, **env))
    assert code == 0, out + err
    assert "note: job 7, " in err and " is over" in err
    found = {name: slurm.submitted.get(name) for name in env}
    assert found == {**dict.fromkeys(env), "SBATCH_ACCOUNT": "me", "SLURM_JWT": "token"}
    assert json.loads((tmp_path / "run" / "job.json").read_text())["cluster"] == "here"
