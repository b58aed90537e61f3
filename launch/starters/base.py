"""The contract of `--workers`: how a node's workers are started, and their ends are reported."""

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import IO, Protocol

from configs import plugins
from launch.ends import StarterEnd, WorkerEnd
from launch.spec import PLACEHOLDER, Facts, LaunchSpec, NodeCommand, Program


class Spawn(Protocol):
    """The function that starts a process, which ends with its agent; see processes/workers.py."""

    def __call__(
        self,
        command: NodeCommand,
        env: Mapping[str, str],
        log: IO[bytes],
        *,
        stdin: int = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
    ) -> "subprocess.Popen[bytes]": ...


@dataclass(frozen=True)
class NodeStart:
    """What an agent gives the processes of its node, besides their commands."""

    ranks: Sequence[int]  # of the node's workers
    env: Mapping[str, str]
    log: IO[bytes]  # their stdout and stderr
    spawn: Spawn


class StartedProcess:
    """A process of a node, from its start on, and what it reports about its workers.

    The process is a worker itself, or it starts the workers of its node.
    """

    def __init__(
        self, command: NodeCommand, node: NodeStart, process: "subprocess.Popen[bytes]"
    ) -> None:
        self.command = command
        self._node = node
        self._process = process
        self._has_ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def code(self) -> int | None:
        """The exit code of its part of this attempt, -9 after SIGKILL; None while it runs."""
        return self._process.poll()

    def new_ends(self) -> list[WorkerEnd]:
        """How workers have ended since the last call.

        If this process is a worker, its exit code is that of the worker. This class has no
        information about workers that the process has started.
        """
        code = self.code()
        if self.command.rank is None or code is None or self._has_ended:
            return []
        self._has_ended = True
        return [worker_end(self.command.rank, code)]

    def end(self) -> StarterEnd:
        """How this process itself ended; `code` must not be None."""
        code = self.code()
        assert code is not None
        exit_code, number = code_and_signal(code)
        return StarterEnd(self.command.starter, exit_code, number, time.time())

    def kill(self) -> None:
        """End the process at once after its last worker, since its own end may take seconds.

        A process that is a worker is not ended, since a profiler around it may still be saving.
        """
        if self.command.rank is None:
            self._process.kill()

    def may_have_workers(self) -> bool:
        """Whether it may have workers, which a signal to it would reach; true if unknown."""
        return True

    def may_stay(self) -> bool:
        """Whether it may stay for the next attempt while the workers below it are ended."""
        return False

    def begin_again(self, command: NodeCommand, node: NodeStart) -> bool:
        """Begin the next attempt in this process; False if that is impossible."""
        return False

    def end_for_good(self) -> None:
        """End the process if it stays after an attempt."""


def code_and_signal(code: int) -> tuple[int | None, int | None]:
    """Split a return code of `subprocess` into exit code and signal, of which one is None."""
    return (None, -code) if code < 0 else (code, None)


def worker_end(rank: int, code: int, time_unix_s: float | None = None) -> WorkerEnd:
    """The end of a worker with this return code; without a time, it has ended just now."""
    exit_code, number = code_and_signal(code)
    return WorkerEnd(rank, exit_code, number, time_unix_s or time.time())


class Starter(ABC):
    """The base class for each file of launch/starters/, whose `build` is an instance."""

    # Whether it can count the GPUs on a node itself (`--nproc-per-node gpu`).
    counts_gpus = False
    # Whether it serves the store at MASTER_PORT itself, so that no worker may do so.
    serves_port = False
    # The package that the workers' Python needs; None: only the standard library.
    needs: str | None = None

    def problems(self, program: Program) -> Iterator[str]:
        """Why it cannot start such a program, one line per reason that is known beforehand."""
        return iter(())

    @abstractmethod
    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        """The commands for the processes of one node; a pure function.

        Raises:
            UsageError: it cannot start such workers.
        """

    def start(self, command: NodeCommand, node: NodeStart) -> StartedProcess:
        """Start one of its commands on its node.

        Raises:
            MusterError: as `node.spawn` does.
        """
        return StartedProcess(command, node, node.spawn(command, node.env, node.log))


def command(
    spec: LaunchSpec,
    facts: Facts,
    node_rank: int,
    words: Sequence[str],
    env: Mapping[str, str] | None = None,
    rank: int | None = None,
) -> NodeCommand:
    """The command of a process: the program's Python, or else the node's, with `words`.

    It starts in the program's folder. `rank`: its rank, if the process is a worker.
    """
    node = facts.nodes[node_rank]
    program = spec.program
    argv = (program.python or node.python, *words)
    env = {**spec.env, "PYTHONUNBUFFERED": "1", **(env or {})}
    return NodeCommand(
        host=node.spec.host,
        node_rank=node_rank,
        argv=argv,
        env=env,
        cwd=program.cwd or node.repository,
        starter=spec.workers,
        rank=rank,
    )


def escaped(words: Sequence[str]) -> list[str]:
    """`words` for torchrun, which would replace `$local_rank` and `$$` in them."""
    return [word.replace("$", "$$") for word in words]


def variables(spec: LaunchSpec, facts: Facts, node_rank: int) -> dict[str, str]:
    """torchrun's variables for all workers of a node, if torchrun does not start them."""
    return {
        "WORLD_SIZE": str(facts.world_size),
        "LOCAL_WORLD_SIZE": str(facts.counts[node_rank]),
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": str(len(facts.nodes)),
        "MASTER_ADDR": facts.master_addr,
        "MASTER_PORT": str(facts.master_port or PLACEHOLDER),
        # torchrun also sets these; Lightning recognises torchrun by the first
        "TORCHELASTIC_RUN_ID": spec.run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(facts.world_size),
    }


@cache
def starter_of(name: str) -> Starter:
    """The starter that `--workers name` selects."""
    starter: Starter = plugins.load("launch.starters", name)
    return starter


def commands_of(spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
    """The commands for the processes of every node; a pure function."""
    of_node = starter_of(spec.workers).commands
    return [
        each for node_rank in range(len(facts.nodes)) for each in of_node(spec, facts, node_rank)
    ]


class WarmInterpreter:
    """The process that stays from one attempt to the next, if there is one.

    `--workers preload` has such a process. An agent has one `WarmInterpreter` for all attempts.
    """

    def __init__(self) -> None:
        self._process: StartedProcess | None = None

    @property
    def pids(self) -> list[int]:
        """The pid of the process that is not ended between attempts; workers below it are ended."""
        process = self._process
        return [process.pid] if process is not None and process.may_stay() else []

    def start(self, command: NodeCommand, node: NodeStart) -> StartedProcess:
        """Begin this part of an attempt, if possible in the process that has stayed."""
        if self._process is not None and self._process.begin_again(command, node):
            return self._process
        self.end()
        name = command.starter
        if not plugins.is_known("launch.starters", name):  # its package may not be on every node
            name = "torchrun" if command.rank is None else "manual"
        self._process = starter_of(name).start(command, node)
        return self._process

    def end(self) -> None:
        """End the process that has stayed; its workers must have ended before."""
        if self._process is not None:
            self._process.end_for_good()
            self._process = None
