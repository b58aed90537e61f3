"""The leader's side of an agent, which lives through several attempts."""

import os

import pytest

from launch.agent.attempt import AgentConnection
from launch.nodes import channel
from launch.nodes.channel import AgentProcess, Channel


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
