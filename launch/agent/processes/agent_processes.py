"""The agents that a launcher starts."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from launch.nodes.channel import Channel
from muster.run_files import AGENT_ERRORS
from muster.writing import writing


@dataclass(frozen=True)
class AgentProcess:
    """One agent that was started: the way to it, and what this process has started for it."""

    channel: Channel
    process: "subprocess.Popen[bytes]"
    token: str | None = None  # that shows it what is from here, where a network is between


def start_each(argvs: Sequence[Sequence[str]], cwd: Path, run_dir: Path) -> list[AgentProcess]:
    """Start agents, in the order of their nodes, with pipes to and from them."""
    started = []
    for index, argv in enumerate(argvs):
        with _opened(AGENT_ERRORS.path(run_dir, node=index)) as errors:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
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
