"""The nodes of the job that this process is in: the scheduler starts an agent on each of them.

At a restart, lost agents are replaced with another command of the scheduler.

If the job is the run's own, this process is on its first node, and the job ends with this process.
If the job is a user's allocation, this process may be elsewhere, such as on a login node, and the
job continues.

Nothing is sent through the scheduler's command: srun, for example, would respond to a signal by
killing its tasks. Instead each agent connects to its leader, whose address it gets from the
scheduler. A file in the run folder, the leader file, contains the leader's port and a secret by
which both recognise each other. The addresses of these connections show where the other agents can
reach node 0.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex
from typing import Any

from configs.settings.launch import WorkersPerNode
from launch.agent.led_run import LedRun
from launch.agent.processes import process_tree
from launch.deadlines import MAIN_LOOP_TICK_S, MISSING_NODES_NAMED_AFTER_S, SRUN_ENDS_AFTER_TASKS_S
from launch.in_job import run_job
from launch.in_job.job_connection import AgentListener, AgentTask, JobConnection, signed
from launch.nodes.channel import AgentProcess, Channel, Heartbeat, running_s
from launch.nodes.scheduler import SchedulerJob
from launch.nodes.survey import LOAD, Transport, last_line
from launch.nodes.this_machine import ports_of
from launch.runs import node_history
from launch.spec import PLACEHOLDER, RUN_MODULE, Facts, LaunchSpec, NodeFacts, NodeSpec
from launch.starters.base import commands_of
from muster import run_files
from muster.checkout import CHECKOUT
from muster.errors import MusterError
from muster.writing import write_json, writing

TASK = "launch.in_job.task"


@dataclass
class JobNodes:
    """The nodes of one run, in the scheduler's order; this starts its agents."""

    current: SchedulerJob
    job: Mapping[str, Any]  # see `run_job.write_spec`
    python: str
    least: int = 1  # the fewest nodes with which the run continues
    # whether the scheduler has announced the end of the job's time
    is_nearly_over: Callable[[], bool] = lambda: False
    # by host, the agent that was started last, unless it was killed before it had connected
    _agents: dict[str, tuple[JobConnection, AgentTask]] = field(default_factory=dict)
    _data: dict[str, str] = field(default_factory=dict)  # by host, where its --send data is

    waits_for_nodes = False  # a job does not get a lost node back

    @property
    def name(self) -> str:
        """The value of --launcher."""
        return self.current.launcher

    def probe(self) -> Facts:
        """All nodes of the run."""
        return self._facts({})

    def probe_again(self, facts: Facts, lives: Callable[[NodeFacts], bool]) -> Facts:
        """The nodes that answer after a failed attempt, since some may be lost.

        Raises:
            MusterError: too few nodes answer.
        """
        hosts = self._hosts
        living = [node.spec.host for node in facts.nodes if lives(node)]
        others = [host for host in hosts if host not in living]
        silent = self.current.silent_nodes([*living[:1], *others]) if others else []
        excluded = {host: f"{host} does not answer" for host in silent}  # the reason, by host
        left = [host for host in hosts if host not in excluded]
        if len(left) < self.least:
            raise MusterError(
                f"no restart: {len(left)} nodes answer, but at least {self.least} are needed"
            )
        if run_job.excludes_bad_nodes(self.job):
            avoided = node_history.avoided(left, self.current.cluster or self.name, self.least)
            excluded |= {host: f"--exclude auto avoids {host}" for host in avoided}
        for reason in excluded.values():
            print(f"note: continuing without this node: {reason}", file=sys.stderr)
        return self._facts(excluded)

    @property
    def _hosts(self) -> Sequence[str]:
        return self.current.nodes[: len(self.job["nproc"])]

    def _facts(self, excluded: Collection[str]) -> Facts:
        counts = [WorkersPerNode.parse(str(count)) for count in self.job["nproc"]]
        nodes = tuple(
            NodeFacts(NodeSpec(host, count), host, self.python, str(CHECKOUT), count)
            for host, count in zip(self._hosts, counts, strict=True)
            if host not in excluded
        )
        return Facts(nodes, PLACEHOLDER, self.job["master_port"], self.job["network"])

    def launch(self, spec: LaunchSpec, facts: Facts) -> LedRun:
        """Start an agent on each of these nodes, led by this process.

        Raises:
            MusterError: an agent does not start, or its node has no GPU but should have one.
        """
        run = LedRun(
            partial(self._start_agents, spec, facts),
            commands_of,
            prefixes=False,
            patience_s=SRUN_ENDS_AFTER_TASKS_S,
            job=self.current,
            is_nearly_over=self.is_nearly_over,
            complete=self._complete,
        )
        run.start(spec, facts)
        return run

    def _command(self, hosts: Sequence[str], *words: str) -> list[str]:
        """A command that runs the nodes' Python with these words on each of `hosts`."""
        return self.current.command(hosts, (self.python, *words), self.job.get("step", "muster"))

    def _have_data(self, spec: LaunchSpec, hosts: Sequence[str]) -> None:
        """Have each of these nodes copy the --send data from a disk that all of them see.

        Raises:
            MusterError: nodes cannot copy the data; there is a line for each of these nodes.
        """
        from launch.nodes import sending  # imported here, since few runs send data

        assert spec.send is not None
        argv = self._command(hosts, "-c", LOAD, self.current.index_variable)

        def explain(index: int, code: int, error_text: str) -> str:
            return f"{hosts[index]}: the step for --send failed: {last_line(error_text)}"

        transport = Transport(hosts, [argv], explain, self.current.env)
        places = sending.copy_data(spec.send, hosts, transport, None, quiet=spec.quiet)
        self._data |= dict(zip(hosts, places, strict=True))

    def _start_agents(
        self, spec: LaunchSpec, facts: Facts, nodes: Mapping[int, NodeFacts], heartbeat: Heartbeat
    ) -> list[AgentProcess]:
        """Start an agent on each of these nodes, in order, with one command for all of them.

        Raises:
            MusterError: an agent does not connect; the command has then been ended.
        """
        hosts = [node.spec.host for node in nodes.values()]
        leader_file = run_files.LEADER.path(spec.run_dir, name=token_hex(8))
        argv = self._command(hosts, RUN_MODULE, TASK, str(leader_file))
        if spec.send is not None:
            self._have_data(spec, hosts)
        token = token_hex(16)
        listener = _listener(spec, token)
        log = run_files.AGENT_ERRORS.path(spec.run_dir, node=min(nodes))
        about = {"port": listener.port, "token": token, "network": facts.network}
        about |= {"counts_gpus": facts.world_size is None}
        about |= {"job": f"{type(self.current).__module__}:{type(self.current).__name__}"}
        with writing(log):
            log.parent.mkdir(exist_ok=True)
            write_json(leader_file, about, mode=0o600)
            output = log.open("wb")
        with output:
            command = subprocess.Popen(
                argv,
                cwd=CHECKOUT,
                env=dict(self.current.env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a terminal's Ctrl-C reaches only this process
            )
        try:
            agents = self._gather(
                hosts,
                spec,
                listener,
                heartbeat,
                partial(self.current.killed_early, command, log, len(hosts)),
            )
        except BaseException:
            process_tree.end_started([command], SRUN_ENDS_AFTER_TASKS_S)
            raise
        finally:
            listener.close()
            leader_file.unlink(missing_ok=True)
        started = []
        for index, host in enumerate(hosts):
            if index in agents:
                self._agents[host] = connection, _ = agents[index]
                message_of = partial(signed, token=token, task=index)
                started.append(AgentProcess(connection.channel, command, message_of))
            else:  # the attempt begins without it, and notices at once that it is gone
                self._agents.pop(host, None)
                started.append(AgentProcess(Channel(*os.pipe()), command))
                started[-1].channel.close()
        return started

    def _gather(
        self,
        hosts: Sequence[str],
        spec: LaunchSpec,
        listener: AgentListener,
        heartbeat: Heartbeat,
        killed_early: Callable[[], Iterable[int]],
    ) -> dict[int, tuple[JobConnection, AgentTask]]:
        """Wait until all agents of these hosts have connected or were killed; return them by task.

        `heartbeat` reaches each agent as soon as it has connected.

        Raises:
            MusterError: an agent did not start, or has not connected within the time to wait.
        """
        began_s = running_s()
        is_announced = False
        agents: dict[int, tuple[JobConnection, AgentTask]] = {}
        while True:
            for connection, task in listener.agents():
                if not 0 <= task.index < len(hosts) or task.index in agents:
                    raise MusterError(
                        f"an agent on {task.name} has an unexpected task number, {task.index}"
                    )
                agents[task.index] = (connection, task)
                heartbeat.add(connection.channel)
            if len(agents) == len(hosts):
                return agents
            gathered = {*agents, *killed_early()}
            missing = ", ".join(host for index, host in enumerate(hosts) if index not in gathered)
            if not missing:
                return agents
            waited_s = running_s() - began_s
            if waited_s > spec.join_s:
                raise MusterError(
                    f"after {spec.join_s:.0f} s, still missing: {missing} (of {len(hosts)})"
                    f"\ntip: see {self.current.shown_by}"
                )
            if waited_s > MISSING_NODES_NAMED_AFTER_S and not is_announced and not spec.quiet:
                is_announced = True
                print(f"waiting for {missing}", flush=True)
            time.sleep(MAIN_LOOP_TICK_S)

    def _complete(self, facts: Facts) -> Facts:
        """Complete `facts` with what the agents show: node 0's address, and each node's GPUs.

        Raises:
            MusterError: a node has no GPU.
        """
        hosts = [node.spec.host for node in facts.nodes]
        agents = {host: self._agents[host] for host in hosts if host in self._agents}
        tasks = {host: task for host, (_, task) in agents.items()}
        most = max((task.workers for task in tasks.values()), default=1)  # for killed agents
        nodes = []
        for host, node in zip(hosts, facts.nodes, strict=True):
            count = node.nproc.counted(tasks[host].workers if host in tasks else most)
            if count.number == 0:
                raise MusterError(
                    f"{host}: --nproc-per-node gpu, but the job has no GPU on this node"
                    "\ntip: request GPUs with --gpus-per-node"
                )
            nodes.append(replace(node, nproc=count, data=self._data.get(host, "")))
        facts = replace(facts, nodes=tuple(nodes))
        # without node 0 there is no address that others could connect to
        return _with_addresses(facts, [*agents.values()]) if hosts[0] in agents else facts


def _with_addresses(facts: Facts, agents: Sequence[tuple[JobConnection, AgentTask]]) -> Facts:
    """`facts` with the address at which others can reach node 0, whatever its name resolves to.

    If this process is on node 0, that is where the second agent has reached this process. Otherwise
    it is the address from which the first agent has connected.
    """
    (first, task), *others = agents
    if facts.network is not None:
        return replace(facts, master_addr=task.address)
    if first.peer_address != first.own_address:  # this process is elsewhere
        return replace(facts, master_addr=first.peer_address)
    address = others[0][0].own_address if others else first.own_address
    facts = replace(facts, master_addr=address)
    own = [address, *(task.address for _, task in others)]
    is_proof = all(
        (link.own_address, link.peer_address) == (address, task.address) for link, task in others
    )
    if not is_proof or len(agents) < len(facts.nodes):  # several networks, NAT, or a lost node
        return facts
    # each node has reached node 0 at this address: another connection would show no more
    nodes = tuple(replace(node, address=each) for node, each in zip(facts.nodes, own, strict=True))
    return replace(facts, nodes=nodes, nodes_connect=False)


def _listener(spec: LaunchSpec, token: str) -> AgentListener:
    """Open the leader's port for agents.

    Raises:
        MusterError: no port of --port-range is free.
    """
    try:
        return AgentListener(ports_of(spec.ports) if spec.ports else (0,), token)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise MusterError(
            f"no port for agents to connect to: {reason}\ntip: choose another --port-range"
        ) from None
