"""A run on the testbed that loses something and starts again, and what it says of that."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.cluster import ways
from tests.cluster.testbeds import Cluster
from tests.cluster.ways import Run, Script, Trainer, finish
from tests.launch.submit import wait_until

SAVES = Path(__file__).with_name("programs") / "saves.py"
RESTART = ("--nodes", "3:4", "--max-restarts", "1")  # nodes that are gone stay away
LINE = re.compile(r"^attempt 2: .* after [0-9.]+ s: .*$", re.MULTILINE)


def link(state: str) -> Callable[[Run], object]:
    return lambda run: run.cluster.exec("node2", "ip", "link", "set", "exp0", state)


def kill_node(run: Run) -> None:
    """What its agent was started by, and all above it, as when it goes down."""
    agent = run.agent(2)
    daemons = slurm_daemons(run, 2) or [one for one in agent.parents() if one.name() == "sshd"]
    for one in [agent, *daemons]:
        with suppress(psutil.NoSuchProcess):  # each ends when those below it have
            one.kill()


def slurm_daemons(run: Run, node: int) -> list[psutil.Process]:
    """Of one node, of a job: they share the network namespace of its agent."""
    agent = run.agent(node)
    if not any(one.name() == "slurmstepd" for one in agent.parents()):
        return []
    place = network_of(agent.pid)
    return [
        one
        for one in psutil.process_iter()
        if one.name() in ("slurmd", "slurmstepd") and network_of(one.pid) == place
    ]


def network_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


@dataclass(frozen=True)
class Fault:
    """What is done to a run, and how it is undone when the run has gone on."""

    hit: Callable[[Run], object]
    after: Callable[[Run], object] = lambda run: None


FAULTS = {
    "worker killed": Fault(lambda run: run.worker(2).kill()),
    "agent killed": Fault(lambda run: run.agent(2).kill()),
    "link down": Fault(link("down"), link("up")),
    "node lost": Fault(kill_node),
}


class OurTrainer(Trainer):
    """Our own, with a checkpoint at every step."""

    def words(self, folder: Path) -> list[str]:
        often = ["--checkpoint-every", "1", "--evaluate", "never", "--no-save-model"]
        return [*super().words(folder), *often]


class SavingScript(Script):
    """A user's loop with checkpoints and records of Muster's library."""

    output = "*/metrics/rank_0000[0-3].jsonl"
    output_bytes = 2000

    def words(self, folder: Path) -> list[str]:
        return ["--", "train.py"]

    def place(self, folder: Path) -> Path:
        project = super().place(folder)
        (project / "train.py").write_text(SAVES.read_text())
        return project


PROGRAMS = {"trainer": OurTrainer, "script": SavingScript, "plain script": Script}


def through_ssh(cluster: Cluster, nodes: int, *flags: str) -> list[str]:
    return ways.ssh(cluster, nodes, *flags)


def through_sbatch(cluster: Cluster, nodes: int, *flags: str) -> list[str]:
    command = ways.sbatch("multinode.sh")(cluster, nodes, *flags)
    command.insert(command.index("--nodes"), "--no-kill")
    return command


WAYS = {"ssh": through_ssh, "sbatch": through_sbatch}


def recover(
    cluster: Cluster, way: str, program: str, fault: str, folder: Path
) -> tuple[str, dict[str, Any]]:
    """The line that a run says when it is back at work, and what it keeps; the run is ended."""
    logs = folder / "runs"
    logs.mkdir()
    run = Run(cluster, WAYS[way], logs, *RESTART, program=PROGRAMS[program]())
    record = run.run_dir / "recovery.json"
    try:
        FAULTS[fault].hit(run)
        assert wait_until(lambda: record.exists() or run.process.poll() is not None)
    finally:
        FAULTS[fault].after(run)
        job_out = logs / "job.out"
        if way == "sbatch":
            wait_until(lambda: LINE.search(job_out.read_text()) or run.process.poll() is not None)
            cluster.run("scontrol", "update", "nodename=node2", "state=resume")
            ways.cancel_all(cluster)
        else:
            run.process.terminate()
        _, out, err = finish(run.process)
        assert wait_until(lambda: run.left() == []), run.left()
    output = job_out.read_text() if way == "sbatch" else out
    found = LINE.search(output)
    assert found, output[-3000:] + err
    return found[0], json.loads(record.read_text())
