"""The agents that a launcher starts."""

import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from launch.nodes.channel import Channel
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


def _opened(log: Path) -> IO[bytes]:
    with writing(log):
        log.parent.mkdir(exist_ok=True)
        return log.open("wb")
