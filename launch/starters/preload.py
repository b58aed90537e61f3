"""One process per node imports what the program needs, and forks the workers of each attempt.

The messages between the agent and this process are described in muster/worker/node_workers.py.
"""

import json
import os
import select
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from launch.deadlines import KILLED_PROCESS_IS_GONE_S, WARM_STARTER_IS_IDLE_S
from launch.ends import WorkerEnd
from launch.nodes.channel import running_s
from launch.spec import PRELOAD, Facts, LaunchSpec, NodeCommand, Program
from launch.starters.base import NodeStart, StartedProcess, Starter, command, variables
from muster.errors import refuse

Words = tuple[str, ...]

READ_BYTES = 65_536
# The prefixes of variables that differ between attempts. No library reads these variables when it
# is imported.
ATTEMPT_VARIABLES = (
    *("MASTER_", "MUSTER_", "GROUP_", "ROLE_", "TORCHELASTIC_"),
    *("LOCAL_WORLD_SIZE", "WORLD_SIZE"),
)


class PreloadProcess(StartedProcess):
    """The process that imports and forks; it stays, and forks the workers of the next attempt."""

    def __init__(self, command: NodeCommand, node: NodeStart) -> None:
        reads, writes = os.pipe()
        start, options, program = _parts(command)
        argv = (*start, *options, "--reports", str(writes), "--", *program)
        started = replace(command, argv=argv)
        try:
            process = node.spawn(
                started, node.env, node.log, stdin=subprocess.PIPE, pass_fds=(writes,)
            )
        except BaseException:
            os.close(reads)
            raise
        finally:
            os.close(writes)
        super().__init__(command, node, process)
        self._env = {**node.env, **command.env}  # the environment with which it was started
        assert process.stdin is not None
        os.set_blocking(reads, False)
        os.set_blocking(process.stdin.fileno(), False)
        self._orders = process.stdin
        self._reports = os.fdopen(reads, "rb", buffering=0)
        self._unread = b""
        self._unsent = b""
        self._attempt = 0
        self._has_forked = False
        self._code: int | None = None  # of this attempt
        self._new_ends: list[WorkerEnd] = []

    def may_have_workers(self) -> bool:
        self._exchange()
        return self._has_forked

    def may_stay(self) -> bool:
        """See the base class; a process that has not forked yet would fork too late."""
        return self.may_have_workers()

    def code(self) -> int | None:
        """See the base class; a process that stays reports the end of its attempt."""
        if self._code is None:
            # polled before the reports are read: if it has ended, these are all its reports
            exit_code = self._process.poll()
            self._exchange()
            if self._code is None:
                return exit_code
        return self._code

    def new_ends(self) -> list[WorkerEnd]:
        self._exchange()
        new = self._new_ends
        self._new_ends = []
        return new

    def kill(self) -> None:
        """See the base class; after its fork it ends the attempt itself, with the last worker."""
        if not self.may_have_workers():
            self._process.kill()

    def begin_again(self, command: NodeCommand, node: NodeStart) -> bool:
        """See the base class: possible if it lives and has imported what this attempt needs."""
        if self._process.poll() is not None or not self._is_idle():
            return False
        if command.starter != self.command.starter:
            return False
        if _imports(command, node) != _imports(self.command, self._node):
            return False
        _, options, program = _parts(command)
        nproc, first_rank, _modules = options[1::2]
        env = {**node.env, **command.env}
        changed = dict(env.items() - self._env.items())
        self._attempt += 1
        order = {
            "attempt": self._attempt,
            "nproc": int(nproc),
            "first_rank": int(first_rank),
            "argv": program,
            "env": {**dict.fromkeys(self._env.keys() - env.keys()), **changed},
            "log": str(Path(node.log.name).absolute()),
        }
        self.command = command
        self._node = node
        self._code = None
        self._new_ends = []
        self._has_forked = False
        self._unsent = json.dumps(order).encode() + b"\n"
        self._exchange()
        return True

    def end_for_good(self) -> None:
        """End the process between attempts, when it has nothing to save."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # it may wait for a disk or a GPU for ever
            self._process.wait(KILLED_PROCESS_IS_GONE_S)
        self._orders.close()
        self._reports.close()

    def _is_idle(self) -> bool:
        """Whether the process has reported the end of the last attempt; waits for that report."""
        deadline = running_s() + WARM_STARTER_IS_IDLE_S
        while self.code() is None and running_s() < deadline:
            select.select([self._reports], [], [], WARM_STARTER_IS_IDLE_S)
        return self.code() is not None

    def _exchange(self) -> None:
        """Send the order and read the reports, as far as possible without waiting."""
        if self._reports.closed:
            return
        with suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                count = os.write(self._orders.fileno(), self._unsent)
                self._unsent = self._unsent[count:]
        while new := self._reports.read(READ_BYTES):
            *lines, self._unread = (self._unread + new).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, report: Mapping[str, object]) -> None:
        """Take a report, if it is about this attempt."""
        if report["attempt"] != self._attempt:
            return
        match report:
            case {
                "rank": int(rank),
                "exit_code": int() | None as exit_code,
                "signal": int() | None as number,
                "time_unix_s": float(time_unix_s),
            }:
                self._new_ends.append(WorkerEnd(rank, exit_code, number, time_unix_s))
            case {"code": int(code)}:
                self._code = code
            case {"pids": _}:
                self._has_forked = True


def _parts(command: NodeCommand) -> tuple[Words, Words, Words]:
    """The words up to preload.py, its options as `Preload.commands` gives them, and the program."""
    argv = command.argv
    options = 1 + next(at for at, word in enumerate(argv) if word.endswith(f"/{PRELOAD}"))
    dashes = argv.index("--", options)
    return argv[:options], argv[options:dashes], argv[dashes + 1 :]


def _imports(command: NodeCommand, node: NodeStart) -> tuple[object, ...]:
    """Everything that determines which modules are imported, and which variables they see."""
    start, (*_, modules), program = _parts(command)
    script = next(word for word in program if word != "--fill-in")
    env: Mapping[str, str] = {**node.env, **command.env}
    of_task = env.get("MUSTER_TASK_VARIABLES", "").split()  # a scheduler's
    others = {
        name: value
        for name, value in env.items()
        if not name.startswith(ATTEMPT_VARIABLES) and name not in of_task
    }
    return start, command.cwd, modules, script, others


class Preload(Starter):
    """Like torchrun, one process beside the workers; rank 0 serves the store."""

    def problems(self, program: Program) -> Iterator[str]:
        """See the contract: a worker that another command starts cannot be forked."""
        if program.wrap:
            yield (
                f"--workers preload forks the workers, so --wrap {program.wrap[0]} cannot start "
                "them"
                "\ntip: use --workers torchrun"
            )
        if program.argv[0] == "--exec":
            yield (
                f"--workers preload works only for Python programs, not for {program.argv[1]}"
                "\ntip: use --workers torchrun or manual"
            )

    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        """See the contract.

        Raises:
            UsageError: the program is not Python, or another command starts it.
        """
        refuse(self.problems(spec.program))
        words = (
            f"{facts.nodes[node_rank].repository}/{PRELOAD}",
            *("--nproc", str(facts.counts[node_rank])),
            *("--first-rank", str(sum(facts.counts[:node_rank]))),
            *("--modules", spec.preload or "torch"),
            *("--", *spec.program.worker_argv),
        )
        return [command(spec, facts, node_rank, words, variables(spec, facts, node_rank))]

    def start(self, command: NodeCommand, node: NodeStart) -> StartedProcess:
        """See the contract."""
        return PreloadProcess(command, node)


build = Preload()
