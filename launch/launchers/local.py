"""Start the workers on this machine; several nodes are pretended, one torchrun agent for each."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from configs.errors import MusterError
from configs.plugins import REPOSITORY
from launch import processes, torchrun
from launch.follow import Follower
from launch.spec import Facts, LaunchSpec, NodeCommand, NodeSpec

ADDRESS = "127.0.0.1"
# Below the range from which the kernel gives ports to outgoing connections.
PORTS = range(20_000, 32_000)
POLL_S = 0.1
# Time for a worker to find that a peer is gone, and to write down how it ended.
ECHO_S = 3.0
STOP_S = 5.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Local:
    """This machine as one node, or as several pretended ones."""

    def probe(self, nodes: Sequence[NodeSpec], master_port: int | None) -> Facts:
        nproc = tuple(_gpus() if node.nproc == "gpu" else node.nproc for node in nodes)
        if not all(nproc):
            raise MusterError(
                "--nproc-per-node gpu, but this machine shows no GPU; give a number of workers"
            )
        if master_port is not None and not _is_free(master_port):
            raise MusterError(
                f"--master-port {master_port} is in use on this machine; choose another"
            )
        return Facts(sys.executable, REPOSITORY, ADDRESS, master_port or _free_port(), nproc)

    def plan(self, spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
        return [
            NodeCommand(
                host=node.host,
                node_rank=node_rank,
                argv=torchrun.command(spec, facts, node_rank),
                env={**spec.env, "PYTHONUNBUFFERED": "1"},
                cwd=facts.repository,
            )
            for node_rank, node in enumerate(spec.nodes)
        ]

    def launch(self, spec: LaunchSpec, plan: Sequence[NodeCommand]) -> "LocalJob":
        return LocalJob(spec, plan)


class LocalJob:
    """Agents of this process; whatever happens to it or to them, all end together."""

    def __init__(self, spec: LaunchSpec, plan: Sequence[NodeCommand]) -> None:
        self.job_id = str(os.getpid())
        self._signals: list[int] = []
        workers = spec.run_dir / "workers"
        self._follower = Follower(workers / "rank_00000.out", workers / "rank_00000.err")
        for number in STOP_SIGNALS:
            # nohup has a run outlive its terminal
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._note)
        processes.adopt_orphans()
        logs = spec.run_dir / "agents"
        logs.mkdir(exist_ok=True)
        self._agents = [_start(command, logs) for command in plan]

    @property
    def shown(self) -> bytes:
        return self._follower.tail

    def wait(self) -> int:
        """0 if every agent ended with 0; 128 + its number if a signal ended the run; else 1."""
        try:
            while self._running() and not self._failed() and not self._signals:
                self._show()
                time.sleep(POLL_S)
            self._wait_for_echoes()
        finally:
            processes.end_descendants(STOP_S, in_a_hurry=self._interrupted_twice)
            self._show()
        if self._signals:
            return 128 + self._signals[0]
        return 1 if self._failed() else 0

    def _wait_for_echoes(self) -> None:
        deadline = time.monotonic() + ECHO_S
        while self._running() and not self._signals and time.monotonic() < deadline:
            self._show()
            time.sleep(POLL_S)

    def _show(self) -> None:
        try:
            self._follower.poll()
        except BrokenPipeError:  # as in `... | head`: a run that nobody watches any more ends
            self._signals.append(signal.SIGPIPE)

    def _running(self) -> bool:
        return any(agent.poll() is None for agent in self._agents)

    def _failed(self) -> bool:
        return any(agent.poll() not in (None, 0) for agent in self._agents)

    def _interrupted_twice(self) -> bool:
        return self._signals.count(signal.SIGINT) > 1

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)


def _start(command: NodeCommand, logs: Path) -> "subprocess.Popen[bytes]":
    with (logs / f"node_{command.node_rank:05d}.log").open("wb") as log:
        return subprocess.Popen(
            command.argv,
            cwd=command.cwd,
            # the launcher's pid: a worker that starts as all is ending can tell that it is late
            env={**os.environ, **command.env, "MUSTER_LAUNCHER": str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a terminal's Ctrl-C is the launcher's to answer
            preexec_fn=processes.dies_with_parent(),  # noqa: PLW1509  # this process has one thread
        )


def _gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return len(list(itertools.takewhile(lambda name: name not in ("", "-1"), names)))
    return sum(1 for _ in Path("/proc/driver/nvidia/gpus").glob("*"))


def _free_port() -> int:
    # Two launchers at the same moment should not try the same ports in the same order.
    start = os.getpid() * 7919
    for offset in range(len(PORTS)):
        port = PORTS[(start + offset) % len(PORTS)]
        if _is_free(port):
            return port
    raise MusterError(f"no free port between {PORTS[0]} and {PORTS[-1]}; give --master-port")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()  # as torchrun's store: it listens everywhere
    except OSError:
        return False
    return True


build = Local
