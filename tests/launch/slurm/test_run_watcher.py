"""A run without a record of its end is judged by Slurm and its other records, always alike."""

import json
import os

import pytest

from launch.ends import End, Kind
from launch.leading.leader import lead_or_submit
from launch.runs import leftovers, run_record, run_state, waiting
from launch.runs.run_state import Submission, Watchers
from launch.runs.watching import run_document
from launch.runs.watching.run_document import RunEvents
from launch.slurm.run_watcher import SlurmRunWatcher
from launch.spec import LaunchSpec
from muster import json_output
from tests.launch.pretended import FACTS, PROGRAM, Pretended
from tests.launch.run_folders import JOB, NPROC, of_ranks, run_folder
from tests.written import write


def of_agents(*ends: End) -> dict:
    """Return the records of agents about how each of their nodes has ended."""
    files = {}
    for index, end in enumerate(ends):
        place = {"index": index, "node": f"node{index}", "ranks": [index]}
        files[f"agents/node_0000{index}.json"] = {**place, "address": f"10.0.0.{index}"}
        how = {"code": 1, "cause": "command", "message": end.text, "clock_offset_s": 0.0}
        files[f"agents/node_0000{index}.exit.json"] = {**place, **how, "ends": [end.to_json()]}
    return files


SENT_A_SIGNAL = of_agents(*(End(Kind.SIGNAL, node, 4.0, signal=15) for node in ("node0", "node1")))
LOST_LEADER = of_agents(*(End(Kind.JOB, node, 4.0) for node in ("node0", "node1")))
KILLED = of_agents(
    End(Kind.JOB, "node0", 4.0),
    End(Kind.KILLED, "node1", 1.0, signal=9, message="torchrun", ranks=(1,)),
)
KILLED_TEXT = "error: torchrun on node1 was killed by SIGKILL (rank 1)"
NEVER = "error: ranks 0, 1 never started: Slurm reports FAILED for job 12"
FORGOTTEN = "error: Slurm no longer has job 12, and no record shows how it ended"


def says(state: str) -> str:
    return f"error: Slurm reports {state} for job 12"


# Slurm's answer, the files in the run folder, and the expected word, exit code, cause and message.
ENDS = {
    "cancelled while pending": (
        "CANCELLED", {}, "stopped", 143, "signal", "cancelled before it began",
    ),
    "cancelled without a leader": (
        "CANCELLED", LOST_LEADER, "stopped", 143, "signal", "cancelled",
    ),
    "out of memory before the leader": (
        "OUT_OF_MEMORY", {}, "failed", 1, "out_of_memory", says("OUT_OF_MEMORY"),
    ),
    "out of memory": (
        "OUT_OF_MEMORY", LOST_LEADER, "failed", 1, "out_of_memory", says("OUT_OF_MEMORY"),
    ),
    "node failure": ("NODE_FAIL", LOST_LEADER, "failed", 1, "job", says("NODE_FAIL")),
    "time limit": ("TIMEOUT", SENT_A_SIGNAL, "failed", 1, "job", says("TIMEOUT")),
    "batch shell failed": ("FAILED", {}, "failed", 1, "not_started", NEVER),
    "leader killed": (
        "FAILED", {**SENT_A_SIGNAL, **of_ranks("signal", "stopped by SIGTERM", 143)},
        "failed", 1, "job", says("FAILED"),
    ),
    "worker killed": ("FAILED", KILLED, "failed", 137, "killed", KILLED_TEXT),
    "done": ("COMPLETED", of_ranks("done", "", 0), "done", 0, "done", ""),
    "forgotten": (
        "", {**LOST_LEADER, **of_ranks("signal", "stopped by SIGTERM", 143)},
        "lost", 1, "job", FORGOTTEN,
    ),
}  # fmt: skip


@pytest.fixture
def documents(tmp_path, monkeypatch):
    """A function that returns the documents printed with --json so far."""
    with (tmp_path / "documents").open("wb") as file:
        monkeypatch.setattr(json_output, "_descriptor", os.dup(file.fileno()))
    yield lambda: [*map(json.loads, (tmp_path / "documents").read_text().splitlines())]
    json_output.end()


class Submits(Pretended):
    """A launcher that has submitted job 12."""

    submits = True
    name = "slurm"

    def submit(self, spec, facts):
        return Submission("12", "here", SlurmRunWatcher(cluster="here"))


@pytest.mark.parametrize("case", ENDS)
def test_a_run_without_a_record_of_its_end_is_judged_alike(
    slurm, tmp_path, documents, case, capsys, monkeypatch
):
    monkeypatch.setattr(waiting, "RUN_DOCUMENT_EVERY_S", 0.02)
    state, files, word, *ended = ENDS[case]
    if state:
        slurm.job_is(state)
    else:
        slurm.forget()
    run = write(run_folder(tmp_path, "run", JOB), {**NPROC, **files})
    seen = run_state.state_of(run)
    assert (seen.word, seen.is_over) == (word, True)
    by_status = run_document.all_fields(run, seen)["end"]
    assert [by_status[name] for name in ("exit_code", "cause", "message")] == ended
    assert waiting.wait(run, None) == ended[0]
    (by_wait,) = (document for document in documents() if document["kind"] == "ended")
    assert {name: by_wait[name] for name in by_status} == by_status
    capsys.readouterr()
    events = RunEvents(run)
    spec = LaunchSpec("run", run, PROGRAM)
    code = lead_or_submit(Submits("fails"), spec, FACTS, follows=True, events=events)
    assert code == ended[0]
    assert run_document.end_fields(events.end) == by_status
    printed = capsys.readouterr()
    assert f"job 12: {word}\n" in printed.out and ended[2] in printed.err
    assert not (run / "exit.json").exists()


@pytest.mark.parametrize("state", ["FAILED", "COMPLETED", ""])
def test_status_writes_nothing_into_the_run_folder(slurm, tmp_path, monkeypatch, state):
    """The status is also the same if the disk is full by then."""
    run = write(run_folder(tmp_path, "run", JOB), NPROC)
    if state:
        slurm.job_is(state)
    else:
        slurm.forget()
    before = run.stat().st_mtime_ns
    seen = run_state.state_of(run)
    assert seen.is_over and run.stat().st_mtime_ns == before
    monkeypatch.setattr("launch.runs.failure.full_disk", lambda path: f"{path}: the disk is full")
    assert run_state.state_of(run).end["message"] == seen.end["message"]


def test_output_of_a_job_without_a_leader_is_shown(slurm, tmp_path, capsys):
    slurm.job_is("FAILED")
    run = write(run_folder(tmp_path, "run", JOB), NPROC)
    write(run, {"submitit/12_0_log.out": "/opt/python: No such file or directory\n"})
    lead_or_submit(Submits("fails"), LaunchSpec("run", run, PROGRAM), FACTS, follows=True)
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"{run}/submitit/12_0_log.out ends with:",
        "/opt/python: No such file or directory",
        f"{NEVER}: /opt/python: No such file or directory",
    ]


def test_unreadable_leader_record_does_not_end_following(slurm, tmp_path, monkeypatch):
    """A shared disk may show the record later."""
    run = write(run_folder(tmp_path, "run", JOB), of_ranks("done", "", 0))

    class Gone(SlurmRunWatcher):
        def state(self, run_dir, job, end):
            (run / "job.json").unlink(missing_ok=True)
            seen = super().state(run_dir, job, end)
            slurm.job_is("COMPLETED")
            return seen

    monkeypatch.setattr("launch.slurm.run_watcher.JOB_ASKED_EVERY_S", 0.0)
    state = Submission("12", "here", Gone(cluster="here")).follow(LaunchSpec("run", run, PROGRAM))
    assert state.word == "done"


def test_run_of_completed_held_job_without_record_is_lost(slurm, tmp_path):
    """Somebody held the job; the run's leader was elsewhere, and has recorded nothing."""
    slurm.job_is("COMPLETED")
    run = run_folder(tmp_path, "run", JOB)
    write(run, {"slurm.json": {"nproc": ["gpu"], "step": "muster-run"}})
    seen = run_state.state_of(run)
    assert (seen.word, seen.end["code"]) == ("lost", 1)


def test_run_that_another_version_queued_in_several_jobs_is_that_of_its_record(slurm, tmp_path):
    several = {"job.json": JOB | {"job_ids": ["12", "13"]}, ".first-job": "12"}
    run = write(run_folder(tmp_path, "run", JOB), {**several, "slurm.json": {"queues": 2}})
    slurm.queue_is("12|12|PENDING|N/A|N/A|Priority", "13|13|PENDING|N/A|N/A|Priority")
    assert [state.detail for state in run_state.states_of([run], Watchers())] == [
        "job 12; Priority"
    ]
    lines: list[str] = []
    run_state.cancel(run, lines.append)
    assert slurm.calls("scancel") == ["scancel 12"] and lines == ["run: stopped"]


@pytest.mark.parametrize("ask", [leftovers.running, leftovers._links_to_sent_folders])
def test_slurm_is_asked_once_about_leftovers_of_all_runs(slurm, tmp_path, monkeypatch, ask):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(leftovers, "CHECKOUT", tmp_path)
    failed = {"code": 1, "message": "", "time_unix_s": 1.0}
    for number in range(5):
        run_dir = run_folder(tmp_path / "logs", f"{number}", JOB | {"job_id": f"{number}"}, failed)
        run_record.remember(run_dir)
        (tmp_path / "logs" / f".snapshot-{number}").symlink_to(run_dir / "snapshot")
    [*ask()]
    assert len(slurm.calls("squeue")) == len(slurm.calls("scontrol")) == 1
