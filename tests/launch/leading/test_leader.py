"""The leader of a run heeds signals at any time, and no terminal holds it up."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from launch.agent.processes import process_tree
from launch.deadlines import RESTART_WAITS_FOR_DISK_S
from launch.ends import End, Kind
from launch.launchers.base import launcher_of
from launch.leading import leader
from launch.leading.leader import lead, lead_or_submit, new_run
from launch.programs.command_line import CommandLine
from launch.programs.python_choice import say_once
from launch.runs import restart, run_record, run_state
from launch.runs.restart import BY_SIGNAL
from launch.runs.run_state import LeaderWatcher, Submission
from launch.spec import LaunchSpec
from muster.checkout import CHECKOUT
from muster.errors import MusterError, UsageError
from tests.commands import cause_in, ended
from tests.launch.pretended import FACTS, PROGRAM, Pretended
from tests.launch.pretended_agent import LISTENS_S, PRINTED_BYTES
from tests.launch.submit import wait_until
from tests.written import write


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """The spec of a run that this process leads."""
    monkeypatch.setattr(process_tree, "adopt_orphans", lambda: None)
    return LaunchSpec("run", tmp_path, PROGRAM, join_s=300.0, max_restarts=3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1])
def test_a_signal_between_attempts_ends_the_run(spec, number, capsys):
    launcher = Pretended("fails", asked=lambda: os.kill(os.getpid(), number))
    code = lead(launcher, spec, FACTS)
    assert (code, launcher.launched) == (128 + number, 1)
    ended = run_record.read_end(spec.run_dir)
    assert ended["code"] == code and ended["message"] == f"stopped by {number.name}"
    assert capsys.readouterr().err.endswith(f"error: stopped by {number.name}\n")


def test_culprit_reported_two_seconds_late_is_still_the_cause(spec, capsys):
    (node,) = FACTS.nodes
    facts = replace(FACTS, nodes=(node, replace(node, name="node1")))
    code = lead(Pretended("late_culprit", facts=facts), replace(spec, max_restarts=0), facts)
    ended = run_record.read_end(spec.run_dir)
    assert code == 137 and (ended["code"], ended["rank"], ended["cause"]) == (137, 1, "killed")
    assert End.from_json(ended["end"]).kind is Kind.KILLED
    message = "error: rank 1 on node1 was killed by SIGKILL"
    assert ended["message"] == message
    assert message in capsys.readouterr().err.splitlines()


@pytest.mark.slow
def test_unread_output_holds_up_no_heartbeat(spec, monkeypatch):
    """As in `... | less`, the reader takes nothing before the run is over."""
    reads, writes = os.pipe()
    taken = []

    def read_late():
        time.sleep(LISTENS_S + 2)
        while new := os.read(reads, 65_536):
            taken.append(new)

    reader = threading.Thread(target=read_late)
    reader.start()
    with monkeypatch.context() as patched, os.fdopen(writes, "w") as out:
        patched.setattr(sys, "stdout", out)
        code = lead(Pretended("listens"), replace(spec, max_restarts=0), FACTS)
    reader.join()
    os.close(reads)
    assert code == 0, run_record.read_end(spec.run_dir)
    assert len(b"".join(taken)) == PRINTED_BYTES


@pytest.mark.slow
def test_ctrl_z_leaves_the_run_as_it_is(tmp_path):
    """There would be nobody else to lead it."""
    command = [sys.executable, "-m", "tests.launch.pretended", "listens", str(tmp_path)]
    with ended(subprocess.Popen(command, cwd=CHECKOUT, start_new_session=True)) as process:
        wait_until((tmp_path / "exits").exists)
        process.send_signal(signal.SIGTSTP)
        assert process.wait(timeout=300) == 0, run_record.read_end(tmp_path)


def test_an_odd_message_is_its_agent_s_failure_and_is_recorded(spec, capsys):
    assert lead(Pretended("is_odd"), replace(spec, max_restarts=0), FACTS) == 1
    recorded = run_record.read_end(spec.run_dir)
    assert (recorded["code"], recorded["cause"]) == (1, "node_lost")
    assert recorded["message"].startswith("error: node0 sent an invalid message: ")
    assert "\x1b" not in capsys.readouterr().err


def test_nothing_of_a_lost_agent_is_left_before_the_next_attempt(spec):
    """Its workers could still write into the folder that the next attempt will use."""
    job = Pretended("outlives").launch(spec, FACTS)
    (agent,) = [one.process for one in job._agents.values()]
    try:
        assert job.wait() == 1
        assert agent.poll() is not None
    finally:
        job.close()


def test_an_agent_that_dies_between_attempts_is_known_to_be_dead(spec):
    job = Pretended("fails").launch(spec, FACTS)
    job.wait()
    for one in job._agents.values():
        one.process.wait()
    assert not job.lives(FACTS.nodes[0])
    job.close()


def test_waiting_restart_names_missing_nodes_once_per_change(spec, capsys, monkeypatch):
    monkeypatch.setattr(leader, "RESTART_ASKS_NODES_AGAIN_S", 0.0)
    answers = iter(["node1: no route\nnode2: no route"] * 3 + ["node2: no route"] * 2 + [""])

    def next_answer():
        if why := next(answers):
            raise MusterError(why)

    job = SimpleNamespace(lives=lambda node: False)
    assert leader.nodes_for_restart(Pretended("fails", next_answer), spec, FACTS, job) == FACTS
    printed = capsys.readouterr().err.splitlines()
    assert [one.partition("): ")[2] for one in printed] == [
        "node1: no route; node2: no route",
        "node2: no route",
    ]


def test_restart_waits_if_agent_found_a_full_disk(spec, capsys, monkeypatch):
    pauses = []
    monkeypatch.setattr(leader, "time", SimpleNamespace(time=time.time, sleep=pauses.append))
    assert lead(Pretended("is_full"), replace(spec, max_restarts=1), FACTS) == 1
    assert pauses == [RESTART_WAITS_FOR_DISK_S]
    end = run_record.read_end(spec.run_dir / "attempts" / "0")
    assert (end["code"], end["cause"]) == (1, "disk_full")
    assert "agents/node_00000.json: the disk is full" in end["message"]
    assert "the disk is full; the next attempt starts in " in capsys.readouterr().err


def test_failures_that_are_alike_are_counted(spec):
    for number, message in enumerate(["other", "boom", "boom"]):
        folder = spec.run_dir / "attempts" / str(number)
        write(folder, {"exit.json": {"cause": "program", "rank": 0, "message": message}})
    write(spec.run_dir, {"exit.json": {"cause": "program", "rank": 0, "message": "boom"}})
    assert restart.count_same_failures(spec.run_dir) == 3
    write(spec.run_dir, {"exit.json": {"cause": "program", "rank": 1, "message": "boom"}})
    assert restart.count_same_failures(spec.run_dir) == 1


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGHUP, signal.SIGALRM])
def test_leader_that_gets_a_signal_stops_its_run_and_records_that(tmp_path, number):
    # under nohup, SIGHUP would be ignored
    command = ["env", f"--default-signal={number.name[3:]}"]
    command += [sys.executable, "-m", "tests.launch.pretended", "listens", str(tmp_path)]
    with ended(subprocess.Popen(command, cwd=CHECKOUT, start_new_session=True)) as process:
        wait_until((tmp_path / "exits").exists)
        process.send_signal(number)
        assert process.wait(timeout=300) == 128 + number
    end = run_record.read_end(tmp_path)
    assert (
        end["message"] == f"stopped by {number.name}"
        and run_state.state_after(end).word == "stopped"
    )


class Submits(Pretended):
    """A launcher whose submitted job has already ended, as the job's leader has recorded."""

    submits = True

    def __init__(self):
        super().__init__("fails")

    def submit(self, spec, facts):
        class Over(LeaderWatcher):
            def state(self, run_dir, job, end):
                return run_state.state_after(end)

        return Submission("7", "here", Over())


def follow(spec):
    """Submit a run, and follow it to its end."""
    return lead_or_submit(Submits(), spec, FACTS, follows=True)


@pytest.mark.parametrize("code", BY_SIGNAL)
def test_exit_code_of_a_program_is_not_taken_for_signal(spec, code, capsys):
    """This concerns --wait, where the leader in the job has recorded the end."""
    message = f"error: rank 1 on node1: exit code {code}"
    run_record.end(spec.run_dir, code, message, rank=1, cause="program")
    recorded = run_record.read_end(spec.run_dir)
    assert follow(spec) == code
    assert run_record.read_end(spec.run_dir) == recorded
    assert cause_in(capsys.readouterr().err) == message
    state = run_state.state_after(recorded)  # its detail names the code once
    assert (state.word, state.detail) == ("failed", f"rank 1 on node1: exit code {code}")


def test_command_waiting_for_job_shows_last_output_of_rank(spec, capsys):
    """The job's leader has recorded it; the rank's files may not be visible here yet."""
    run_record.end(spec.run_dir, 7, "error: rank 1 on node1: exit code 7", 1, "program", "no data")
    assert follow(spec) == 7
    assert capsys.readouterr().err.splitlines()[1:] == [
        "error: rank 1 on node1: exit code 7",
        "its output ends with:",
        "  no data",
        f"all of its output: muster jobs logs {spec.run_dir.name} --rank 1",
    ]


def test_error_of_waiting_command_records_no_end_of_run(spec, monkeypatch):
    def unseen(*given):
        raise OSError(errno.EIO, "the terminal is gone")

    monkeypatch.setattr(Submission, "follow", unseen)
    with pytest.raises(OSError, match="the terminal is gone"):
        follow(spec)
    assert run_record.read_end(spec.run_dir) is None


def test_a_leader_that_has_begun_stays_the_leader_of_its_run(spec):
    """Its job may begin before the process that submits it has the job's number."""
    leader = {"launcher": "slurm", "job_id": "7", "host": "node0", "pid": 5}
    write(spec.run_dir, {"job.json": leader})
    run_record.record_submission(spec, "slurm", "7", "here")
    assert run_record.read_job(spec.run_dir) == leader


@pytest.fixture
def new(tmp_path, monkeypatch):
    """Make a run named `run` that executes `true` on this machine."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    say_once.cache_clear()

    def make(*flags: str) -> LaunchSpec:
        words = ["--launcher=local", "--workers=manual", f"--logs-dir={tmp_path}", "--run-id=run"]
        line = CommandLine.parse([*words, *flags, "--", "true"])
        launcher = launcher_of(line)
        return new_run(line, launcher, launcher.assume(), make=True)[1]

    return make


def test_a_run_that_goes_on_is_not_overwritten(new):
    spec = new()
    run_record.begin(spec, "local", "")  # led by this process
    with pytest.raises(UsageError, match="muster jobs cancel run"):
        new("--overwrite")
    run_record.end(spec.run_dir, 0, "")
    assert new("--overwrite").run_dir == spec.run_dir


def test_settings_of_torchrun_that_are_not_passed_on_are_named_once(new, monkeypatch, capsys):
    monkeypatch.setenv("PET_NNODES", "2")
    monkeypatch.setenv("PET_RDZV_BACKEND", "etcd")
    run_record.end(new().run_dir, 0, "")
    new("--overwrite")
    notes = [line for line in capsys.readouterr().err.splitlines() if "PET_" in line]
    assert [line.rpartition(": ")[2] for line in notes] == ["PET_NNODES, PET_RDZV_BACKEND"]
