"""The agents of a run from one attempt to the next."""

import os
import subprocess

from launch.agent.attempt import AgentConnection
from launch.agent.led_run import LedRun
from launch.nodes.channel import AgentProcess, Channel
from launch.spec import LaunchSpec, Program
from launch.starters.base import commands_of
from tests.launch.pretended import FACTS


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
