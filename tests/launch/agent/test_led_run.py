"""The agents of a run from one attempt to the next."""

import os
import subprocess

import pytest

from launch.agent import led_run
from launch.agent.led_run import AgentConnection, Attempt, LedRun
from launch.nodes import channel
from launch.nodes.channel import AgentProcess, Channel
from launch.spec import LaunchSpec, Program
from launch.starters.base import commands_of
from tests.launch.pretended import FACTS, assignment


def test_an_agent_that_dies_while_an_attempt_starts_is_not_started_twice(tmp_path, monkeypatch):
    """Else what has started the first one would be left, and nobody would know it."""
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


@pytest.fixture
def agent():
    """Its channel, and what it writes to."""
    to_leader, to_agent = os.pipe(), os.pipe()
    own = AgentConnection(AgentProcess(Channel(to_leader[0], to_agent[1]), None))
    other = Channel(to_agent[0], to_leader[1])
    yield own, other
    for one in (own.channel, other):
        one.close()


def test_an_agent_that_ended_while_other_nodes_were_waited_for_does_not_live(agent):
    """Nobody looks at its channel then; what it has sent before is for the next attempt."""
    own, other = agent
    other.send(beat=1.0)
    assert own.lives()
    other.close()
    assert not own.lives()
    assert own.channel.receive() == [{"beat": 1.0}]


def test_an_agent_that_fell_silent_while_other_nodes_were_waited_for_does_not_live(
    agent, monkeypatch
):
    own, other = agent
    now_s = channel.running_s()
    monkeypatch.setattr(channel, "running_s", lambda: now_s + 60.0)
    assert not own.lives()
    other.send(beat=1.0)
    assert own.lives()


def test_signs_of_life_of_many_agents_cause_no_more_looks_at_the_run_s_files(
    agent, tmp_path, monkeypatch
):
    """A look asks for the state of two files of each rank, perhaps of a file server."""
    own, other = agent
    now_s = [channel.running_s()]
    monkeypatch.setattr(led_run, "running_s", lambda: now_s[0])
    spec = LaunchSpec("run", tmp_path, Program(()))
    attempt = Attempt(spec, [own], [], lambda: False, prefixes=True)
    attempt.start([assignment(tmp_path)])
    looks = []
    monkeypatch.setattr(attempt._follower, "poll", lambda last=False: looks.append(now_s[0]))
    for _ in range(20):
        other.send(beat=1.0)
        attempt._tick()
    other.send(done=True)
    attempt._tick()
    assert own.is_done and len(looks) == 1
    now_s[0] += 1.0
    attempt._tick()
    assert len(looks) == 2
