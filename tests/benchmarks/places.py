"""Where a benchmark runs: this machine's loopback, or the nodes of a testbed of some link rate."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.nodes.this_machine import free_port
from launch.virtual_cluster import lifecycle
from launch.virtual_cluster.virtual_nodes import rate_bits
from muster import run_files
from muster.errors import MusterError, UsageError
from tests.cluster.testbeds import REPOSITORY, TESTBED, Cluster, bring_up, take_down

LOOPBACK = "loopback"  # a place without links
UNLIMITED = "unlimited"  # a testbed whose links are as fast as they go
INTERFACE = "exp0"  # of each node of a testbed, where training traffic goes
TIMEOUT_S = 1800.0
TAIL = 2000  # characters of what a worker said that failed


@dataclass(frozen=True)
class Steps:
    """What one run of one case leaves: of every step, the first one included."""

    losses: list[float]  # means over the global batch
    step_s: list[float]  # of rank 0
    sync_s: list[float] = field(default_factory=list)  # likewise, hidden or not; ours only


@dataclass(frozen=True)
class Place:
    """Machines that a case can be run on, one worker on each."""

    rate: str
    nodes: int
    threads: int
    cluster: Cluster | None

    @property
    def bytes_per_s(self) -> float | None:
        """What a link carries one way, headers included; None: it has no limit."""
        bits = rate_bits(self.rate)
        return bits / 8 if bits else None

    def ours(self, flags: Sequence[str], logs: Path | None = None) -> Steps:
        """A run by the launcher, through sshd on a testbed; its folder stays where `logs` is given.

        Raises:
            MusterError: it failed; it says why.
        """
        with tempfile.TemporaryDirectory() as folder:
            logs = logs or Path(folder)
            more = [*flags, "--logs-dir", str(logs), "--threads", str(self.threads)]
            command = [*self._launcher(), *more]
            try:
                done = subprocess.run(
                    command, cwd=REPOSITORY, env=self._env(), capture_output=True, text=True,
                    timeout=TIMEOUT_S, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise MusterError(f"not done after {TIMEOUT_S:.0f} s") from None
            if done.returncode:
                raise MusterError(f"{' '.join(command)}: {done.stderr[-TAIL:]}")
            (records,) = logs.glob("*/metrics/rank_00000.jsonl")
            return steps_in(records)

    def peer(self, name: str, flags: Sequence[str]) -> Steps:
        """A run of a file of peers/, one process on each node.

        Raises:
            MusterError: one of them failed; it says why.
        """
        port = free_port()
        command = [sys.executable, "-m", f"tests.benchmarks.peers.{name}", *flags]
        with tempfile.TemporaryDirectory() as folder:
            workers = [
                self._start(rank, port, command, Path(folder) / str(rank))
                for rank in range(self.nodes)
            ]
            _finish(workers, Path(folder))
            return steps_in(Path(folder) / "0")

    def _start(
        self, rank: int, port: int, command: Sequence[str], message: Path
    ) -> subprocess.Popen[bytes]:
        """Start one worker of a peer, with the variables that torchrun would give it."""
        env = self._env() | {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.nodes),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(self.nodes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": str(self.threads),
            "TOKENIZERS_PARALLELISM": "false",
        }
        before: list[str] = []
        if self.cluster is not None:
            nodes = lifecycle.present().nodes
            env |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            env |= {"MASTER_ADDR": nodes[0].address, "GLOO_SOCKET_IFNAME": INTERFACE}
            before = [sys.executable, TESTBED, "exec", nodes[rank].name, "--"]
        with message.open("wb") as out, message.with_suffix(".err").open("wb") as error:
            return subprocess.Popen(
                [*before, *command], cwd=REPOSITORY, env=env, stdout=out, stderr=error
            )

    def _launcher(self) -> list[str]:
        if self.cluster is None:
            submit = str(REPOSITORY / "launch" / "submit.py")
            return [sys.executable, submit, "--launcher", "local", "--nodes", str(self.nodes)]
        ssh = str(REPOSITORY / "launch" / "ssh.sh")
        return [ssh, ",".join(self.cluster.hosts), "--ssh-config", str(self.cluster.ssh_config)]

    def _env(self) -> dict[str, str]:
        more = {} if self.cluster is None else self.cluster.env
        return {**os.environ, "MUSTER_PYTHON": sys.executable, "HF_HUB_OFFLINE": "1", **more}


def on_ranks(module: str, ranks: int, *flags: str) -> Any:
    """What rank 0 of `module` has written to the file of its flag --worker; here, by torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.json")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", "-m", module, *flags, f"--worker={found}"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=REPOSITORY, env=env, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}")
        return json.loads(found.read_text(encoding="utf-8"))


@contextmanager
def place(rate: str, nodes: int, threads: int) -> Iterator[Place]:
    """Machines with links of `rate`, for as long as they are needed.

    Raises:
        UsageError: that is no rate.
    """
    if rate == LOOPBACK:
        yield Place(rate, nodes, threads, cluster=None)
        return
    check_rate(rate)
    limit = [] if rate == UNLIMITED else ["--rate", rate]
    cluster = bring_up("--nodes", str(nodes), *limit)
    try:
        yield Place(rate, nodes, threads, cluster)
    finally:
        take_down()


def check_rate(rate: str) -> None:
    """Refuse what is no rate.

    Raises:
        UsageError: it is none.
    """
    if rate not in (LOOPBACK, UNLIMITED) and not rate_bits(rate):
        raise UsageError(f"--rates {rate}: give rates like 1gbit, {UNLIMITED} or {LOOPBACK}")


def steps_in(path: Path) -> Steps:
    """The steps among the JSON lines of a file, and whatever else is in it."""
    every = run_files.json_objects(path.read_bytes())
    found = [one for one in every if one.get("kind", "step") == "step"]
    steps = [one for one in found if "step_s" in one]
    return Steps(
        [one["loss"] for one in steps],
        [one["step_s"] for one in steps],
        [one["sync_s"] + one["overlapped_s"] for one in steps if "sync_s" in one],
    )


def _finish(workers: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait until all have ended; where one fails, end the others, and say what it said."""
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while any(worker.poll() is None for worker in workers):
            if any(worker.poll() for worker in workers) or time.monotonic() > deadline:
                break
            time.sleep(0.2)
    finally:
        codes = [worker.poll() for worker in workers]
        for worker in workers:
            worker.terminate()  # nothing, where it has ended
            worker.wait()
    for rank, code in enumerate(codes):
        if code:
            message = (folder / f"{rank}.err").read_text(encoding="utf-8", errors="replace")
            raise MusterError(f"rank {rank} of a peer failed: {message[-TAIL:]}")
    if None in codes:
        raise MusterError(f"a peer was not done after {TIMEOUT_S:.0f} s")
