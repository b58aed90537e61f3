"""Faults that may hit a run on the testbed, what the run reports, and how it starts again."""

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.cluster import ways
from tests.cluster.testbeds import Cluster
from tests.cluster.ways import Run, SavingScript, Script, Trainer
from tests.environments import paced_python
from tests.launch.submit import wait_until
from tests.train.workers import read_json

TIMEOUT_S = 20  # the program's own; ranks on a busy machine are never that late
OFTEN = ("--checkpoint-every", "1", "--no-save-model")
EXACT = ("--dropout", "0", "--lr", "1e-4")  # its losses are the same on any number of nodes
FAULTY = ways.PROGRAMS / "faulty"


class FaultyScript(Script):
    """A script whose PYTHONPATH has the faults; the trainer has the Python of `faulty_python`."""

    def words(self, folder: Path) -> list[str]:
        return ["--env", f"PYTHONPATH={FAULTY}", *super().words(folder)]


class Loop(Script):
    """A program that needs only a shell: it starts immediately, and its ranks never meet."""

    output_bytes = 0

    def words(self, folder: Path) -> list[str]:
        return [*ways.MANUAL, "--", "/bin/sh", "-c", "while :; do echo step; sleep 0.2; done"]


PROGRAMS: dict[str, Callable[[], Trainer]] = {
    "trainer": lambda: Trainer(*OFTEN, *EXACT),
    "script": SavingScript,
    "plain script": lambda: FaultyScript("--timeout-s", str(TIMEOUT_S)),
}


def through_sbatch(cluster: Cluster, nodes: int, *flags: str) -> list[str]:
    command = ways.WAYS["sbatch"](cluster, nodes, *flags)
    command.insert(command.index("--nodes"), "--no-kill")
    return command


WAYS = {"ssh": ways.ssh, "sbatch": through_sbatch}


def link(state: str) -> Callable[[Run], object]:
    return lambda run: run.cluster.exec("node2", "ip", "link", "set", "exp0", state)


def kill_node(run: Run) -> None:
    """Kill node 2's agent and the daemons above it, as when the node goes down."""
    agent = run.agent(2)
    daemons = slurm_daemons(run, 2) or [one for one in agent.parents() if one.name() == "sshd"]
    for one in [agent, *daemons]:
        with suppress(psutil.NoSuchProcess):  # each ends once the processes below it have
            one.kill()


def slurm_daemons(run: Run, node: int) -> list[psutil.Process]:
    """Return the Slurm daemons of a job's node: they share its agent's network namespace."""
    agent = run.agent(node)
    if not any(one.name() == "slurmstepd" for one in agent.parents()):
        return []
    return daemons_of(network_of(agent.pid), "slurmd", "slurmstepd")


def daemons_of(network: str, *names: str) -> list[psutil.Process]:
    """Return the daemons with these names on the node with this network namespace."""
    named = [one for one in psutil.process_iter(["name"]) if one.info["name"] in names]
    return [one for one in named if network_of(one.pid) == network]


def network_of(pid: int) -> str:
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    return ""


def cut_connection(run: Run) -> None:
    below = psutil.Process(run.process.pid).children(recursive=True)
    (client,) = (one for one in below if one.name() == "ssh" and "node2" in one.cmdline())
    client.kill()


@dataclass(frozen=True)
class Fault:
    """What is done to a run, what the run reports, and how it is undone after the run recovers."""

    hit: Callable[[Run], object]
    says: str  # a pattern
    code: int = 1
    after: Callable[[Run], object] = lambda run: None


def faulty_python(folder: Path) -> str:
    """Make a Python whose workers fail when they are told to."""
    return str(paced_python(folder, FAULTY))


def by_itself(how: str, says: str, code: int) -> Fault:
    """Return a fault that rank 2 causes itself: see programs/faulty/."""

    def hit(run: Run) -> None:
        (run.folder / "fault_2").write_text(how)

    return Fault(hit, says, code)


GONE = r"lost contact with node[23] \(10\.10\.1\.\d\): "
FAULTS = {
    "torchrun killed": Fault(
        lambda run: run.torchrun(1).kill(),
        r"torchrun on node1 was killed by SIGKILL \(rank 1\)",
        code=137,
    ),
    "worker raises": by_itself("raise", r"(^|[ .])EmptySample: sample 17 is empty$", 1),
    "worker aborts": by_itself("abort", "rank 2 on node2 died: Aborted", 134),
    "worker killed": Fault(
        lambda run: run.worker(2).kill(),
        r"rank 2 (ended without a message|on \S+ was killed by SIGKILL)",
        code=137,
    ),
    "worker segfaults": Fault(
        lambda run: run.worker(2).send_signal(signal.SIGSEGV),
        r"rank 2 on node[23] died: Segmentation fault",
        code=139,
    ),
    "worker stopped": Fault(
        lambda run: run.worker(2).suspend(),
        r"rank 2 on node[23] .* all_reduce .*\(SIGSTOP\)",
    ),
    "connection cut": Fault(cut_connection, "lost contact with node2 "),
    "agent killed": Fault(lambda run: run.agent(2).kill(), GONE),
    "agent of node 0 killed": Fault(lambda run: run.agent(0).kill(), "lost contact with"),
    "link down": Fault(link("down"), "link down", after=link("up")),
    "node lost": Fault(kill_node, GONE),
    "agent told to end": Fault(
        lambda run: run.agent(2).terminate(),
        r"node[23] was sent SIGTERM",
    ),
    # its workers agree with all other workers on the step after which they stop
    "agent told to stop": Fault(
        lambda run: run.agent(2).terminate(),
        "stopped cleanly",
        code=75,
    ),
}
# The faults whose recovery times are in docs/monitoring.md.
TIMED = ("worker killed", "agent killed", "link down", "node lost")
# A run may continue without one of its nodes, because lost nodes stay away.
ANY_THREE = ("--nodes", "3:4", "--max-restarts")


def begin(cluster: Cluster, way: str, program: Trainer, folder: Path, restarts: int = 0) -> Run:
    return Run(cluster, WAYS[way], folder, *ANY_THREE, str(restarts), program=program)


def recover(run: Run, fault: Fault) -> dict[str, Any]:
    """Hit a run with a fault; return its record of the recovery once it works again."""
    record = run.run_dir / "recovery.json"
    attempt = len(list(run.run_dir.glob("attempts/*"))) + 2
    try:
        fault.hit(run)
        wait_until(lambda: run.is_over() or _attempt(record) == attempt, about=run.printed)
        assert not run.is_over(), run.printed()
    finally:
        fault.after(run)
    return read_json(record)


def _attempt(record: Path) -> int | None:
    with suppress(FileNotFoundError):
        return int(read_json(record)["attempt"])
    return None


def leave_nothing(run: Run) -> None:
    """End a run on all nodes, and make the nodes that it has lost available again."""
    run.cluster.run("scontrol", "update", "nodename=node2", "state=resume")
    ways.cancel_all(run.cluster)
    run.process.terminate()
    run.end()
    run.ends()
