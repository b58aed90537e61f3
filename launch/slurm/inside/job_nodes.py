"""The nodes of the job that this process is in: they are asked, and agents started on them.

In a job of the run's own this process is on the first of them, and the job ends with it. In one
that somebody holds it may be elsewhere, such as on a login node, and the job goes on.
"""

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType

from configs.plugins import REPOSITORY
from configs.settings.launch import Slots
from launch.agent.agent_job import AgentJob, SchedulersJob
from launch.agent.membership.door import Who
from launch.agent.processes.process_tree import between_attempts
from launch.slurm import node_health
from launch.slurm.inside.agents_step import StepRequest, start_agents
from launch.slurm.queue.job_state import end_unix_s
from launch.spec import DECIDED, Facts, LaunchSpec, NodeFacts, NodeSpec
from launch.starters.base import commands_of
from muster.errors import MusterError
from muster.orderly_stop import NOTICE_SIGNALS

# sbatch's --signal comes two minutes before the end, or up to three: a job that has no longer may
# have been told before this process could hear it.
SHORT_S = 180.0
SRUN_ENDS_S = 2.0  # for srun to end after its tasks


class Notice:
    """Whether the time of the job is nearly up: Slurm has said so, or half of a short one is."""

    def __init__(self, ends_unix_s: float | None) -> None:
        for number in NOTICE_SIGNALS:
            signal.signal(number, self._note)
        self._has_come = False
        left_s = float("inf") if ends_unix_s is None else ends_unix_s - time.time()
        self._half_s = time.monotonic() + left_s / 2 if left_s <= SHORT_S else float("inf")

    def has_come(self) -> bool:
        return self._has_come or time.monotonic() > self._half_s

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True


@dataclass
class JobNodes:
    """Of one run, in the order that Slurm has them."""

    inside: SchedulersJob
    slurm_id: str  # the number by which Slurm's commands find the job's nodes
    hosts: Sequence[str]
    counts: Sequence[Slots]  # of workers
    python: str
    env: Mapping[str, str]  # that srun sees
    network: str | None = None
    master_port: int | None = None
    step: str = "muster"  # the name of its steps
    least: int = 1  # nodes with which it goes on
    _has_started: bool = False

    def facts(self) -> Facts:
        """The nodes; where some may be gone, since an attempt has failed, those that answer.

        Raises:
            MusterError: too few do.
        """
        answer = dict.fromkeys(self.hosts, True)
        if self._has_started:
            answer = node_health.answers(self.hosts, self.env)
        if sum(answer.values()) < self.least:
            raise MusterError(
                f"{sum(answer.values())} nodes answer, of at least {self.least}: no restart"
            )
        for host in (host for host, is_here in answer.items() if not is_here):
            print(f"note: going on without it: {host} does not answer", file=sys.stderr)
        nodes = tuple(
            NodeFacts(NodeSpec(host, count), host, self.python, str(REPOSITORY), count)
            for host, count in zip(self.hosts, self.counts, strict=True)
            if answer[host]
        )
        return Facts(nodes, DECIDED, self.master_port, self.network)

    def start(self, spec: LaunchSpec, facts: Facts) -> AgentJob:
        """Have an agent on each of these nodes, led by this process.

        Raises:
            MusterError: one does not start, or shows no GPU where there should be some.
        """
        self._has_started = True
        request = StepRequest(
            [node.name for node in facts.nodes],
            self.python,
            self.step,
            self.env,
            self.network,
            counts_gpus=any(node.nproc == "gpu" for node in facts.nodes),
        )
        with between_attempts(()):  # a signal ends what has not begun yet, and the run with it
            started = start_agents(request, spec)
        agents = [process for process, _ in started]
        try:
            facts = _known(facts, [who for _, who in started])
            ends_unix_s = end_unix_s(self.slurm_id, self.env)
            return AgentJob(
                spec,
                facts,
                commands_of(spec, facts),
                lambda: agents,
                prefixes=False,
                patience_s=SRUN_ENDS_S,
                inside=self.inside,
                ends_unix_s=ends_unix_s,
            )
        except BaseException:
            for agent in agents:
                agent.channel.close()  # which ends it
            raise


def _known(facts: Facts, agents: Sequence[Who]) -> Facts:
    """With what the agents have said: where the first is met, and how many GPUs each has.

    Raises:
        MusterError: a node has none.
    """
    nodes = []
    for node, who in zip(facts.nodes, agents, strict=True):
        count = who.workers if node.nproc == "gpu" else node.nproc
        if not count:
            raise MusterError(
                f"{who.name}: --nproc-per-node gpu, but the job shows no GPU here; ask for some "
                "with --gpus-per-node"
            )
        nodes.append(replace(node, nproc=count, name=who.name))
    return replace(facts, nodes=tuple(nodes), master_addr=agents[0].address)
