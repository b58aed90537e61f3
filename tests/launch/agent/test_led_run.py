"""The agents of a run from one attempt to the next."""

import os
import subprocess
from contextlib import contextmanager
from dataclasses import replace

import pytest

from launch.agent import led_run
from launch.agent.led_run import AgentConnection, Attempt, LedRun
from launch.ends import End, Kind
from launch.nodes import channel
from launch.nodes.channel import AgentProcess, Channel
from launch.nodes.messages import (
    Assign,
    Beat,
    ChoosePort,
    ChosenPort,
    Done,
    Ended,
    Note,
    Start,
    Unreached,
    from_agent,
    from_leader,
)
from launch.spec import LaunchSpec, Program
from launch.starters.base import commands_of
from muster import run_files
from tests.launch.pretended import FACTS, assignment
from tests.written import write


def test_agent_that_dies_while_starting_is_not_started_twice(tmp_path, monkeypatch):
    """Otherwise the process that started the first agent would be left, unknown to anybody."""
    started = []

    def start(nodes, heartbeat):
        for _ in nodes:
            started.append(subprocess.Popen(["true"]))
            yield AgentProcess(Channel(*os.pipe()), started[-1])

    run = LedRun(start, commands_of, prefixes=False)
    monkeypatch.setattr(run, "_begin", lambda spec, facts: None)
    looks = iter([True, False])
    monkeypatch.setattr(AgentConnection, "lives", lambda agent: next(looks))
    spec = LaunchSpec("run", tmp_path, Program(()))
    try:
        for _ in range(2):
            run.start(spec, FACTS)
        assert len(started) == 1
    finally:
        run.close()


@contextmanager
def connected():
    """The leader's connection to an agent, and the agent's end of it."""
    to_leader, to_agent = os.pipe(), os.pipe()
    own = AgentConnection(AgentProcess(Channel(to_leader[0], to_agent[1], from_agent), None))
    other = Channel(to_agent[0], to_leader[1], from_leader)
    yield own, other
    for one in (own.channel, other):
        one.close()


@pytest.fixture
def agent():
    with connected() as both:
        yield both


def test_agent_that_ended_during_wait_for_nodes_is_not_alive(agent):
    """Nobody reads its channel meanwhile; its earlier messages are for the next attempt."""
    own, other = agent
    other.send(Beat(1.0))
    assert own.lives()
    other.close()
    assert not own.lives()
    assert own.channel.receive() == [Beat(1.0)]


def test_agent_silent_during_wait_for_nodes_is_not_alive(agent, monkeypatch):
    own, other = agent
    now_s = channel.running_s()
    monkeypatch.setattr(channel, "running_s", lambda: now_s + 60.0)
    assert not own.lives()
    other.send(Beat(1.0))
    assert own.lives()


@pytest.mark.parametrize(
    ("ending", "kind"),
    [("exit 2", Kind.REFUSED), ("exit 255", Kind.NODE_LOST), ("kill -KILL $$", Kind.NODE_LOST)],
)
def test_agent_that_never_spoke_and_exited_blames_no_node(agent, tmp_path, ending, kind):
    """With exit code 255, ssh reports that the connection broke, so the node may be lost."""
    own, other = agent
    own.begin(assignment(tmp_path), tmp_path)
    log = run_files.AGENT_ERRORS.path(tmp_path, node=0).relative_to(tmp_path)
    write(tmp_path, {str(log): "a note\nerror: no yaml; install it\n"})
    with subprocess.Popen(["sh", "-c", ending]) as own.process:
        other.close()
        own.channel.receive()
        end = own.loss()
    assert end.kind is kind
    why = f"{end.node}: its agent did not start: no yaml; install it"
    assert (end.text == why) == (kind is Kind.REFUSED)


def test_agent_that_never_spoke_has_as_long_as_nodes_have_to_join(agent, tmp_path, monkeypatch):
    """It may still be logging in; once it has sent a message, 15 s of silence mean its loss."""
    own, other = agent
    now_s = [channel.running_s()]
    monkeypatch.setattr(channel, "running_s", lambda: now_s[0])
    part = assignment(tmp_path)
    own.begin(replace(part, spec=replace(part.spec, join_s=300.0)), tmp_path)

    def loss_after(seconds):
        for _ in range(seconds):
            now_s[0] += 1.0
            own.channel.receive()
        return own.loss()

    assert loss_after(20) is None
    other.send(Beat(1.0))
    assert loss_after(10) is None
    assert loss_after(10).kind == Kind.NODE_LOST


def test_agent_that_waits_for_a_disk_is_named_once_with_its_file(agent, tmp_path):
    own, _ = agent
    own.begin(assignment(tmp_path), tmp_path)
    stands = [Beat(5.0, seconds, "/disk/x") for seconds in (1.0, 31.0, 61.0, 0.0, 0.0)]
    assert [own.stall_line(one) for one in stands] == [
        None,
        "node0 has been waiting for /disk/x for 31 s; is its disk full or slow?",
        None,
        "node0 is no longer waiting",
        None,
    ]


def test_heartbeats_of_agents_cause_no_extra_read_of_run_files(agent, tmp_path, monkeypatch):
    """Each look needs the state of two files per rank, perhaps from a file server."""
    own, other = agent
    now_s = [channel.running_s()]
    monkeypatch.setattr(led_run, "running_s", lambda: now_s[0])
    spec = LaunchSpec("run", tmp_path, Program(()))
    attempt = Attempt(spec, [own], [], lambda: False, prefixes=True)
    attempt.start([assignment(tmp_path)])
    looks = []
    monkeypatch.setattr(attempt._follower, "poll", lambda last=False: looks.append(now_s[0]))
    for _ in range(20):
        other.send(Beat(1.0))
        attempt._tick()
    other.send(Done())
    attempt._tick()
    assert own.is_done and len(looks) == 1
    now_s[0] += 1.0
    attempt._tick()
    assert len(looks) == 2


def test_equal_notes_of_nodes_are_joined_and_hidden_by_quiet(agent, tmp_path, capsys):
    first = assignment(tmp_path)
    second = replace(first, index=1, name="node1", ranks=(1,))
    for quiet, printed in (
        (False, "note: node0, node1: few files\nnote: node1: old\n"),
        (True, ""),
    ):
        spec = LaunchSpec("run", tmp_path, Program(()), quiet=quiet)
        with connected() as (own, other):
            attempt = Attempt(spec, [agent[0], own], [], lambda: False, prefixes=True)
            attempt.start([first, second])
            agent[1].send(Note("few files"))
            other.send(Note("few files"))
            other.send(Note("old"))
            attempt._tick()
        assert capsys.readouterr().err == printed


def test_where_nodes_do_not_connect_node_0_chooses_the_port_at_once(agent, tmp_path):
    first = replace(assignment(tmp_path), nodes_connect=False)
    second = replace(first, index=1, name="node1", ranks=(1,))
    own, node_0 = agent
    with connected() as (other, node_1):
        spec = LaunchSpec("run", tmp_path, Program(()))
        attempt = Attempt(spec, [own, other], [], lambda: False, prefixes=True)
        attempt.start([first, second])
        attempt._tick()
        assert [type(one) for one in node_0.receive()] == [Assign, ChoosePort]
        node_0.send(ChosenPort(20_000))
        attempt._tick()
        assert node_0.receive() == [Start(20_000)]
        assert [type(one) for one in node_1.receive()] == [Assign, Start]
        node_1.send(Unreached("connection refused"))
        attempt._tick()
        assert attempt._first is not None and "node1 sent an invalid message" in attempt._first.text


WORK = [
    ({"start.json": {"step": 3, "time_unix_s": 23.5}}, "step 3 again after "),
    ({"workers/rank_00000.out": "done\n"}, "first output after "),
]


@pytest.mark.parametrize(("files", "words"), WORK)
def test_recovery_of_attempt_that_ends_at_once_is_reported(
    agent, tmp_path, monkeypatch, capfd, files, words
):
    own, other = agent
    monkeypatch.setattr(Attempt, "_look", lambda attempt: None)
    end = End(Kind.KILLED, "node0", 18.0, 0, signal=9).to_json()
    ended = {"time_unix_s": 20.5, "end": end}
    write(tmp_path, {"attempts/0/exit.json": ended, **files})
    spec = replace(LaunchSpec("run", tmp_path, Program(())), attempt=1)
    attempt = Attempt(spec, [own], [], lambda: False, prefixes=False)
    attempt.start([assignment(tmp_path)])
    other.send(ChosenPort(20_000))
    other.send(Done())
    other.send(Ended(0))
    assert attempt.wait() == 0
    assert f"attempt 2: {words}" in capfd.readouterr().out


def test_recovery_is_looked_for_once_a_second(agent, tmp_path, monkeypatch):
    """Each look reads the run folder, which may be on a file server."""
    now_s = [channel.running_s()]
    monkeypatch.setattr(led_run, "running_s", lambda: now_s[0])
    spec = LaunchSpec("run", tmp_path, Program(()))
    attempt = Attempt(spec, [agent[0]], [], lambda: False, prefixes=False)
    attempt.start([assignment(tmp_path)])
    attempt._fault_unix_s = 18.0
    looks = []
    monkeypatch.setattr(led_run.recovery, "report", lambda *_, **how: looks.append(now_s[0]))
    for _ in range(20):
        attempt._look()
    assert len(looks) == 1
    now_s[0] += 1.0
    attempt._look()
    assert len(looks) == 2
