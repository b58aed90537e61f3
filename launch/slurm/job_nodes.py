"""The nodes of the job that this process is in: one step of srun starts an agent on each of them.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from launch.agent.agent_job import AgentJob, SchedulersJob
from launch.agent.meeting import TELL_S
from launch.agent.processes import process_tree
from launch.agent.processes.process_tree import between_attempts
from launch.nodes.channel import AgentProcess, Heartbeat
from launch.nodes.running_time import running_s
from launch.nodes.this_machine import among
from launch.runs import node_history
from launch.slurm import node_health, run_job
from launch.slurm.controller import end_unix_s
from launch.slurm.current_job import CurrentJob
from launch.slurm.job_connection import AgentListener, JobConnection, Task, signed
from launch.spec import DECIDED, RUN_MODULE, Facts, LaunchSpec, NodeCommand, NodeFacts, NodeSpec
from launch.starters.base import commands_of
from muster import run_files
from muster.checkout import CHECKOUT
from muster.errors import MusterError
from muster.tool_environment import require
from muster.writing import tail, write_json, writing

SRUN_ENDS_S = 2.0  # time for srun to end after its tasks
TICK_S = 0.05
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
    """The nodes of one run, in Slurm's order; its attempts are started here."""

    current: CurrentJob
    job: Mapping[str, Any]  # see `run_job.write_spec`
    python: str
    env: Mapping[str, str]  # srun's environment
    least: int = 1  # fewest nodes for the run to continue
    is_nearly_over: Callable[[], bool] = lambda: False  # the job's time, as Slurm has announced
    _has_started: bool = False

    name = "slurm"
    waits_for_nodes = False  # a job does not get a lost node back

    def probe(self) -> Facts:
        """The nodes; after a failed attempt those that answer, since some may be gone.

        Raises:
            MusterError: too few answer.
        """
        without: dict[str, str] = {}  # why, by host
        hosts = self.current.nodes[: len(self.job["nproc"])]
        if self._has_started:
            gone = node_health.silent(hosts, self.env)
            without = {host: f"{host} does not answer" for host in gone}
        here = [host for host in hosts if host not in without]
        if len(here) < self.least:
            raise MusterError(f"{len(here)} nodes answer, of at least {self.least}: no restart")
        if self._has_started and run_job.avoids_bad(self.job):
            avoided = node_history.avoided(here, self.current.cluster or self.name, self.least)
            without |= {host: f"--exclude auto avoids {host}" for host in avoided}
        for why in without.values():
            print(f"note: going on without it: {why}", file=sys.stderr)
        nodes = tuple(
            NodeFacts(NodeSpec(host, count), host, self.python, str(CHECKOUT), count)
            for host, count in zip(hosts, self.job["nproc"], strict=True)
            if host not in without
        )
        return Facts(nodes, DECIDED, self.job["master_port"], self.job["network"])

    def plan(self, spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
        """Empty: the processes are known when the agents have connected."""
        return []

    def launch(self, spec: LaunchSpec, facts: Facts, plan: Sequence[NodeCommand] = ()) -> AgentJob:
        """Start an agent on each of these nodes, led by this process.

        Raises:
            MusterError: one does not start, or has no GPU but should.
        """
        self._has_started = True
        heartbeat = Heartbeat()  # from now on, since agents must not wait for Slurm's answer
        with between_attempts(()):  # a signal ends an unfinished start, and the run with it
            agents, tasks = self._start_agents(spec, facts, heartbeat)
        try:
            facts = _known(facts, tasks)
            return AgentJob(
                spec,
                facts,
                commands_of(spec, facts),
                lambda _: agents,
                prefixes=False,
                patience_s=SRUN_ENDS_S,
                inside=SchedulersJob(self.current.name, self.current.cluster, self.is_nearly_over),
                ends_unix_s=end_unix_s(self.current.job_id, self.env),
                heartbeat=heartbeat,
            )
        except BaseException:
            heartbeat.stop()
            for agent in agents:
                agent.channel.close()  # this ends it
            raise

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
        self, spec: LaunchSpec, facts: Facts, heartbeat: Heartbeat
    ) -> tuple[list[AgentProcess], list[Task]]:
        """An agent on each node, in order; and each agent's own description.

        Raises:
            MusterError: one of them does not connect; nothing of the step is left.
        """
        require("srun", "a run inside a job")
        hosts = [node.name for node in facts.nodes]
        token = token_hex(16)
        listener = _listener(spec, token)
        meeting = run_files.LEADER.path(spec.run_dir, name=token_hex(8))
        log = run_files.AGENT_ERRORS.path(spec.run_dir, node=0)
        about = {"port": listener.port, "token": token, "network": facts.network}
        about |= {"counts_gpus": any(node.nproc == "gpu" for node in facts.nodes)}
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
            message_of = partial(signed, token=token)
            agents = [AgentProcess(each.channel, srun, message_of) for each, _ in came]
            tasks = [task for _, task in came]
            tasks[0] = replace(tasks[0], address=tasks[0].address or _met_at(came))
            return agents, tasks
        except BaseException:
            heartbeat.stop()
            process_tree.end_started([srun], SRUN_ENDS_S)
            raise
        finally:
            listener.close()
            meeting.unlink(missing_ok=True)


def _known(facts: Facts, agents: Sequence[Task]) -> Facts:
    """`facts` with the agents' descriptions: the first one's address, and the number of GPUs.

    Raises:
        MusterError: a node has none.
    """
    nodes = []
    for node, task in zip(facts.nodes, agents, strict=True):
        count = task.workers if node.nproc == "gpu" else node.nproc
        if not count:
            raise MusterError(
                f"{task.name}: --nproc-per-node gpu, but the job shows no GPU here; ask for some "
                "with --gpus-per-node"
            )
        nodes.append(replace(node, nproc=count, name=task.name))
    return replace(facts, nodes=tuple(nodes), master_addr=agents[0].address)


def _met_at(came: Sequence[tuple[JobConnection, Task]]) -> str:
    """Where the first of these agents can be reached by the others, not what its name resolves to.

    Where this process is on its node, that is where the second one has found this process; else it
    is from where the first one came.
    """
    first, second = came[0][0], came[min(1, len(came) - 1)][0]
    is_here = first.peer_address == first.own_address
    found = second.own_address if is_here else first.peer_address
    return found.removeprefix("::ffff:")  # IPv4, where one listens for IPv6 as well


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
    began, is_announced = running_s(), False
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
        if waited_s > TELL_S and not is_announced and not spec.quiet:
            is_announced = True
            print(f"waiting for {missing}", flush=True)
        time.sleep(TICK_S)


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
        return AgentListener(among(spec.ports) if spec.ports else (0,), token)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise MusterError(
            f"no port that agents could connect to: {why}; choose another --port-range"
        ) from None
