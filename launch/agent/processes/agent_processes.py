"""The agents that a launcher starts: each by itself, or forked from a process that has imported."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from launch.agent.processes import die_with_parent
from launch.nodes.channel import Channel
from launch.spec import NodeCommand
from muster.run_files import AGENT_ERRORS
from muster.writing import writing


@dataclass(frozen=True)
class AgentCommand:
    """What starts one agent."""

    argv: Sequence[str]
    cwd: Path
    log: Path  # of what goes to its stderr

    @classmethod
    def of_each(cls, argvs: Iterable[Sequence[str]], cwd: Path, run_dir: Path) -> list[Self]:
        """Of the agents of a run, in the order of their nodes."""
        return [
            cls(argv, cwd, AGENT_ERRORS.path(run_dir, node=index))
            for index, argv in enumerate(argvs)
        ]


@dataclass(frozen=True)
class AgentProcess:
    """One agent that was started: the way to it, and what this process has started for it."""

    channel: Channel
    process: "subprocess.Popen[bytes]"
    token: str | None = None  # that shows it what is from here, where a network is between


def start_each(commands: Sequence[AgentCommand]) -> list[AgentProcess]:
    """Start agents as processes of their own, with pipes to and from them."""
    started = []
    for command in commands:
        with _opened(command.log) as errors:
            process = subprocess.Popen(
                command.argv,
                cwd=command.cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # a terminal's Ctrl-C is the launcher's to answer
            )
        assert process.stdin is not None and process.stdout is not None
        channel = Channel(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))
        process.stdout.close()
        process.stdin.close()
        started.append(AgentProcess(channel, process))
    return started


def start_with_shared_import(
    commands: Sequence[AgentCommand], first: NodeCommand, env: Mapping[str, str]
) -> list[AgentProcess]:
    """Start agents of this machine from one process that imports for the workers of all.

    `first` is the command of a node that is started by `muster/worker/preload.py`, and `env` what
    workers have beside. See muster/worker/shared_import.py.
    """
    at = first.argv.index("--")
    held = (sys.executable, "-ISs", str(Path(die_with_parent.__file__)), str(os.getpid()))
    with ExitStack() as until_started:
        channels, agents, descriptors = [], [], []
        for command in commands:
            stdin, to_agent = os.pipe()
            from_agent, stdout = os.pipe()
            errors = until_started.enter_context(_opened(command.log))
            theirs = [stdin, stdout, errors.fileno()]
            for one in theirs[:2]:
                until_started.callback(os.close, one)
            descriptors += theirs
            channels.append(Channel(from_agent, to_agent))
            argv = list(command.argv)
            agents.append({"argv": argv, "cwd": str(command.cwd), "descriptors": theirs})
        log = until_started.enter_context(commands[0].log.open("ab"))
        process = subprocess.Popen(
            [*held, *first.argv[:at], "--agents", *first.argv[at:]],
            cwd=first.cwd,
            env={**os.environ, **env, **first.env},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=descriptors,
            start_new_session=True,
        )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(json.dumps({"env": dict(os.environ), "agents": agents}).encode())
    return [AgentProcess(channel, process) for channel in channels]


def _opened(log: Path):  # type: ignore[no-untyped-def]
    with writing(log):
        log.parent.mkdir(exist_ok=True)
        return log.open("wb")
