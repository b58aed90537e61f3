"""The nodes of the job that this process is in: a step of srun starts an agent on each of them.

At a restart another step starts those that were lost.

In a job of the run's own this process is on the first of them, and the job ends with it. In one
that somebody holds it may be elsewhere, such as on a login node, and the job goes on.

Nothing is said through srun, whose own answer to a signal is to kill: each agent reads, in a file
of the run folder, at which port its leader listens and by which secret it knows it, and connects.
That it is reached at the address that srun itself is reached at, Slurm tells it. By which
address agents reach each other is known from these connections.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from configs.settings.launch import WorkersPerNode
from launch.agent.led_run import LedRun, SchedulersJob
from launch.agent.processes import process_tree
from launch.deadlines import MAIN_LOOP_TICK_S, MISSING_NODES_NAMED_AFTER_S, SRUN_ENDS_AFTER_TASKS_S
from launch.nodes.channel import AgentProcess, Heartbeat, running_s
from launch.nodes.this_machine import ports_of
from launch.runs import node_history
from launch.slurm import node_health, run_job
from launch.slurm.controller import end_unix_s
from launch.slurm.current_job import CurrentJob
from launch.slurm.job_connection import AgentListener, JobConnection, Task, signed
from launch.spec import PLACEHOLDER, RUN_MODULE, Facts, LaunchSpec, NodeFacts, NodeSpec
from launch.starters.base import commands_of
from muster import run_files
from muster.checkout import CHECKOUT
from muster.errors import MusterError
from muster.tool_environment import require
from muster.writing import tail, write_json, writing

LOG_BYTES = 65_536  # that are read of srun's output
OPTIONS = (
    "--ntasks-per-node=1",
    "--overlap",  # another step, such as the shell that called this, may have the cores
    "--unbuffered",
    # A lost agent or node must not end the others: the leader decides that.
    *("--kill-on-bad-exit=0", "--wait=0", "--no-kill"),
)


@dataclass
class JobNodes:
    """The nodes of one run, in Slurm's order; its agents are started here."""

    current: CurrentJob
    job: Mapping[str, Any]  # see `run_job.write_spec`
    python: str
    env: Mapping[str, str]  # srun's environment
    least: int = 1  # fewest nodes for the run to continue
    is_nearly_over: Callable[[], bool] = lambda: False  # the job's time, as Slurm has announced
    # by host, those that were started last
    _agents: dict[str, tuple[JobConnection, Task]] = field(default_factory=dict)

    name = "slurm"
    waits_for_nodes = False  # a job does not get a lost node back

    def probe(self) -> Facts:
        """All nodes of the run."""
        return self._facts({})

    def probe_again(self, facts: Facts, lives: Callable[[NodeFacts], bool]) -> Facts:
        """Those that answer after a failed attempt, since some may be gone.

        Raises:
            MusterError: too few answer.
        """
        hosts = self._hosts
        living = [node.spec.host for node in facts.nodes if lives(node)]
        gone = [host for host in hosts if host not in living]
        silent = node_health.silent([*living[:1], *gone], self.env) if gone else []
        without = {host: f"{host} does not answer" for host in silent}  # why, by host
        left = [host for host in hosts if host not in without]
        if len(left) < self.least:
            raise MusterError(f"{len(left)} nodes answer, of at least {self.least}: no restart")
        if run_job.avoids_bad(self.job):
            avoided = node_history.avoided(left, self.current.cluster or self.name, self.least)
            without |= {host: f"--exclude auto avoids {host}" for host in avoided}
        for why in without.values():
            print(f"note: going on without it: {why}", file=sys.stderr)
        return self._facts(without)

    @property
    def _hosts(self) -> Sequence[str]:
        return self.current.nodes[: len(self.job["nproc"])]

    def _facts(self, without: Collection[str]) -> Facts:
        counts = [WorkersPerNode.parse(str(count)) for count in self.job["nproc"]]
        nodes = tuple(
            NodeFacts(NodeSpec(host, count), host, self.python, str(CHECKOUT), count)
            for host, count in zip(self._hosts, counts, strict=True)
            if host not in without
        )
        return Facts(nodes, PLACEHOLDER, self.job["master_port"], self.job["network"])

    def launch(self, spec: LaunchSpec, facts: Facts) -> LedRun:
        """Start an agent on each of these nodes, led by this process.

        Raises:
            MusterError: one does not start, or has no GPU but should.
        """
        inside = SchedulersJob(
            self.current.name,
            self.current.cluster,
            self.is_nearly_over,
            lambda: end_unix_s(self.current.job_id, self.env),
        )
        run = LedRun(
            partial(self._start_agents, spec, facts),
            commands_of,
            prefixes=False,
            patience_s=SRUN_ENDS_AFTER_TASKS_S,
            inside=inside,
            complete=self._complete,
        )
        run.start(spec, facts)
        return run

    def srun(self, hosts: Sequence[str], meeting: Path) -> list[str]:
        """The command line that starts an agent on each of `hosts`; they read `meeting`."""
        # srun of Slurm 22.05 and 23.02 does not take this from the job. If it is not set
        # (--cpus-per-gpu, or nothing), a step has all cores that the job has on each node.
        cores = self.env.get("SLURM_CPUS_PER_TASK")
        return [
            *("srun", f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", *OPTIONS),
            *((f"--cpus-per-task={cores}",) if cores else ()),
            *(f"--nodelist={','.join(hosts)}", f"--job-name={self.job.get('step', 'muster')}"),
            *(self.python, RUN_MODULE, "launch.slurm.task", str(meeting)),
        ]

    def _start_agents(
        self, spec: LaunchSpec, facts: Facts, nodes: Mapping[int, NodeFacts], heartbeat: Heartbeat
    ) -> list[AgentProcess]:
        """An agent on each of these nodes, in order, by a step of srun of their own.

        Raises:
            MusterError: one of them does not connect; nothing of the step is left.
        """
        require("srun", "a run inside a job")
        hosts = [node.spec.host for node in nodes.values()]
        token = token_hex(16)
        listener = _listener(spec, token)
        meeting = run_files.LEADER.path(spec.run_dir, name=token_hex(8))
        log = run_files.AGENT_ERRORS.path(spec.run_dir, node=min(nodes))
        about = {"port": listener.port, "token": token, "network": facts.network}
        about |= {"counts_gpus": facts.world_size is None}
        with writing(log):
            log.parent.mkdir(exist_ok=True)
            write_json(meeting, about, mode=0o600)
            output = log.open("wb")
        with output:
            srun = subprocess.Popen(
                self.srun(hosts, meeting),
                cwd=CHECKOUT,
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a terminal's Ctrl-C is for this process
            )
        try:
            came = _gather(hosts, spec, listener, heartbeat, lambda: _failure(srun, log))
        except BaseException:
            process_tree.end_started([srun], SRUN_ENDS_AFTER_TASKS_S)
            raise
        finally:
            listener.close()
            meeting.unlink(missing_ok=True)
        self._agents |= dict(zip(hosts, came, strict=True))
        return [
            AgentProcess(each.channel, srun, partial(signed, token=token, task=task.index))
            for each, task in came
        ]

    def _complete(self, facts: Facts) -> Facts:
        """`facts` with what the agents know: the first one's address, and the numbers of GPUs.

        Raises:
            MusterError: a node has none.
        """
        came = [self._agents[node.spec.host] for node in facts.nodes]
        nodes = []
        for node, (_, task) in zip(facts.nodes, came, strict=True):
            count = node.nproc.counted(task.workers)
            if count.number == 0:
                raise MusterError(
                    f"{task.name}: --nproc-per-node gpu, but the job shows no GPU here; ask for "
                    "some with --gpus-per-node"
                )
            nodes.append(replace(node, nproc=count))
        address = came[0][1].address or _met_at(came)
        return replace(facts, nodes=tuple(nodes), master_addr=address)


def _met_at(came: Sequence[tuple[JobConnection, Task]]) -> str:
    """Where the first of these agents can be reached by the others, not what its name resolves to.

    Where this process is on its node, that is where the second one has found this process; else it
    is from where the first one came.
    """
    first, _ = came[0]
    second, _ = came[min(1, len(came) - 1)]
    is_here = first.peer_address == first.own_address
    address = second.own_address if is_here else first.peer_address
    return address.removeprefix("::ffff:")  # IPv4, where one listens for IPv6 as well


def _gather(
    hosts: Sequence[str],
    spec: LaunchSpec,
    listener: AgentListener,
    heartbeat: Heartbeat,
    failure: Callable[[], str | None],
) -> list[tuple[JobConnection, Task]]:
    """The agents of these hosts, when all have connected; `heartbeat` reaches each from then on.

    Raises:
        MusterError: one did not start, or has not connected within the time to wait.
    """
    began = running_s()
    is_announced = False
    came: dict[int, tuple[JobConnection, Task]] = {}
    while True:
        for connection, task in listener.agents():
            if not 0 <= task.index < len(hosts) or task.index in came:
                raise MusterError(f"an agent on {task.name} says it is task {task.index}")
            came[task.index] = (connection, task)
            heartbeat.add(connection.channel)
        missing = ", ".join(host for at, host in enumerate(hosts) if at not in came)
        if not missing:
            return [came[index] for index in range(len(hosts))]
        if why := failure():
            raise MusterError(why)
        waited_s = running_s() - began
        if waited_s > spec.join_s:
            raise MusterError(
                f"after {spec.join_s:.0f} s still missing: {missing} of {len(hosts)}; see "
                "sinfo and squeue --steps"
            )
        if waited_s > MISSING_NODES_NAMED_AFTER_S and not is_announced and not spec.quiet:
            is_announced = True
            print(f"waiting for {missing}", flush=True)
        time.sleep(MAIN_LOOP_TICK_S)


def _failure(srun: "subprocess.Popen[bytes]", log: Path) -> str | None:
    """Why an agent will not connect any more: from its own output, or else srun's."""
    lines = tail(log, LOG_BYTES).decode(errors="replace").splitlines()
    failed = [line for line in lines if line.startswith("srun: error: ")]
    if not failed and srun.poll() is None:
        return None
    own = [line for line in lines if not line.startswith(("srun: ", "slurmstepd: "))]
    why = [line.removeprefix("srun: ").removeprefix("error: ") for line in own or failed]
    return "\n".join(why) or f"srun ended with exit code {srun.poll()}; see {log}"


def _listener(spec: LaunchSpec, token: str) -> AgentListener:
    """The port of the leader.

    Raises:
        MusterError: no port of --port-range is free.
    """
    try:
        return AgentListener(ports_of(spec.ports) if spec.ports else (0,), token)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise MusterError(
            f"no port that agents could connect to: {why}; choose another --port-range"
        ) from None
