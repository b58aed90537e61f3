"""A run that this process leads: its agents, from start to end.

It speaks to each through a channel: a pipe here, or one through ssh, or a connection from a task of
srun. Whatever happens to one of them, or to this process, all end together.

Phases: the agents are started and assigned; node 0 says where it listens, and the others connect;
when both ends of each connection are known, node 0 chooses a port for torch; workers run; a signal
or the first trouble stops all; what agents still send is received; channels are closed, which ends
any agent that did not hear. No agent leaves before all have ended, or have done their part.

    to an agent      {"assignment": {...}}                       what it is to run
                     {"connect": {"address": "10.10.1.1", "port": 20000}}   to node 0
                     {"keep": {"own": [...], "peer": [...]}}     that connection is a node's
                     {"choose_port": true}                       all are connected
                     {"start": 20001}                            with that port of torch
                     {"notice": true}                            the time of the job is nearly up
                     {"stop": 130, "why": "...", "hurry": false}
                     {"lost": "node2 (10.0.0.3) is gone: ..."}   another has failed
                     {"inspect": {"id": "7", "ask": "stacks"}}
                     {"go": true}                                all have done their part
    from an agent    {"listening": {"address": "10.10.1.1", "port": 20000}}         of node 0
                     {"accepted": {"own": [...], "peer": [...]}}  of node 0: addresses, ports
                     {"connected": {"own": [...], "peer": [...]}}
                     {"unreached": "connection refused"}
                     {"broken": {"own": [...], "peer": [...], "how": "silent"}}
                     {"master_port": 20001}                      of node 0
                     {"here": {"node": "node1", "ranks": [2, 3], "address": "10.0.0.2", ...}}
                     {"file": "...", ...}                     news of its files: no disk is shared
                     {"inspected": {"id": "7", ...}}
                     {"stopping": 30.0}                          workers stop in order, within that
                     {"done": true}                              its workers have ended well
                     {"failed": "rank 2 on ...", "lost": 3}      ...; the agent that it lost, if any
                     {"ended": {"code": 0, "cause": "done", ...}}

Each message is checked by its form in launch/nodes/message_forms.py. What has none of these, or
names a file that is not the node's own, is that agent's failure: nothing more is taken from it.

One thread does all of this; a second one, the heartbeat's, only writes to the channels. Signal
handlers append to `signals`, and `_tick` looks at it.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.agent.inspection.run_inspection import RunInspection
from launch.agent.log_sync import Received
from launch.agent.meeting import Meeting, closed, silent
from launch.agent.processes import process_tree
from launch.agent.processes.process_tree import on_stop
from launch.agent.recovery import Recovery
from launch.nodes import message_forms
from launch.nodes.channel import SILENT_S, TICK_S, AgentProcess, Heartbeat
from launch.nodes.message_forms import ODD, OddMessage
from launch.nodes.running_time import running_s
from launch.runs.log_tail import Follower, RequestFile
from launch.spec import Assignment, Facts, LaunchSpec, NodeCommand, assignments_of
from muster import run_files
from muster.errors import STOPPED
from muster.orderly_stop import signal_name
from muster.writing import write_json, writing

# Time for workers and agents to find that another is gone, and to record how they ended.
ECHO_S = 3.0
STOP_S = 5.0
CONNECTIONS = {"listening", "accepted", "connected", "unreached", "broken", "master_port"}
REST_S = 60.0  # for the rest of their files, on a slow link


class _AgentConnection:
    """The leader's side of one agent."""

    def __init__(self, assignment: Assignment, started: AgentProcess) -> None:
        self.assignment = assignment
        self.forms = message_forms.of_agent(assignment)
        self.here: Mapping[str, Any] | None = None  # where it is, once that is known
        self.is_done = False
        self._files: Received | None = None  # made when one comes
        self.record: dict[str, Any] | None = None  # the record of its end
        self.process, self.channel = started.process, started.channel
        self._message_of = started.message_of

    def assign(self) -> None:
        self.channel.send(**self._message_of(self.assignment))

    def files(self, run_dir: Path) -> Received:
        """What came of its files."""
        self._files = self._files or Received(run_dir, self.assignment)
        return self._files

    @property
    def place(self) -> str:
        name = self.assignment.name
        return name if self.here is None else f"{name} ({self.here['address']})"

    @property
    def is_over(self) -> bool:
        return self.record is not None or self.channel.ended

    def loss(self) -> str | None:
        """Why nothing more will come of it; None while it lives, or where all has come."""
        if self.record is not None:
            return None
        patience_s = SILENT_S
        if not self.channel.has_message:  # it still has to log in, and to load its modules
            patience_s = max(SILENT_S, self.assignment.spec.join_s)
        if self.channel.ended:
            return closed(self.place)
        if self.channel.silent_s > patience_s:
            return silent(self.place, patience_s)
        return None


@dataclass(frozen=True)
class SchedulersJob:
    """The scheduler's job in which a run is led."""

    job_id: str
    cluster: str | None = None
    # Whether the scheduler has announced the end of the job's time.
    is_nearly_over: Callable[[], bool] = lambda: False


class AgentJob:
    """A run led by this process."""

    detached = False
    is_led_here = True

    def __init__(
        self,
        spec: LaunchSpec,
        facts: Facts,
        plan: Sequence[NodeCommand],
        start: Callable[[Heartbeat], Sequence[AgentProcess]],
        *,
        prefixes: bool,
        is_local: bool = False,  # the agents are on this machine, as children of this process
        patience_s: float = 0.0,  # for the processes that started the agents to end after them
        inside: SchedulersJob | None = None,
        ends_unix_s: float | None = None,  # when a scheduler ends the job
        heartbeat: Heartbeat | None = None,  # if agents have been started before
    ) -> None:
        inside = inside or SchedulersJob(str(os.getpid()))
        self.job_id, self.cluster = inside.job_id, inside.cluster
        self._is_nearly_over, self._patience_s = inside.is_nearly_over, patience_s
        # whether all agents know that the time is nearly up, that one has failed, that they may go
        self._has_announced_end = self._has_failed = self._let_go = False
        self.trouble: str | None = None  # the first that an agent, or this side, noticed
        self.lost_node: str | None = None  # for which that is
        self.signals: list[int] = []
        self._spec, self._run_dir = spec, (run_dir := spec.run_dir)
        self._is_local = is_local
        self._heartbeat = heartbeat or Heartbeat()
        self._fed = 0.0  # when a node last sent a part of its files
        self._patient_until = 0.0  # deadline of workers that are stopping cleanly
        self._follower = Follower(run_dir, prefixes=prefixes)
        self._recovery = Recovery(run_dir, spec.attempt + 1) if spec.attempt else None
        on_stop(lambda number, _: self.signals.append(number))
        signal.signal(signal.SIGTSTP, lambda *_: None)  # Ctrl-Z: a run has no other leader
        self._others = process_tree.children() if is_local else frozenset()
        if is_local:
            process_tree.adopt_orphans()
        assignments = assignments_of(spec, facts, plan, ends_unix_s)
        self._proof = run_dir / assignments[0].proof
        with writing(self._proof):
            self._proof.parent.mkdir(exist_ok=True)
            self._proof.touch()
        started = zip(assignments, start(self._heartbeat), strict=True)
        self._agents = [_AgentConnection(*one) for one in started]
        for agent in self._agents:
            self._heartbeat.add(agent.channel)
            agent.assign()
        names = [assignment.name for assignment in assignments]
        self._meeting = Meeting(names, spec.join_s, running_s())
        self._requests = RequestFile(run_dir)
        self._inspection: RunInspection | None = None  # made at the first request or answer

    @property
    def shown(self) -> bytes:
        return self._follower.tail

    def wait(self) -> int:
        """Wait for the end; return the exit code.

        0 if every agent ended with 0; 75 if the workers stopped cleanly, to be continued; 128 + its
        number if a signal ended the run; else 1.
        """
        try:
            while not self._is_over() and self.trouble is None and not self.signals:
                self._tick()
            if self.signals:
                name = signal_name(self.signals[0])
                self._stop_all(128 + self.signals[0], name)
            elif self.trouble is not None:
                self._tick_until(running_s() + ECHO_S)
                self._stop_all(1, self.trouble)
            self._tick_until(running_s() + STOP_S)
        finally:
            if self._inspection is not None:
                self._inspection.finish()
            self._heartbeat.stop()
            for agent in self._agents:
                agent.channel.close()  # this ends agents that did not get the message
            self._proof.unlink(missing_ok=True)
            self._end_agents()
            self._show(last=True)
        in_order = any(agent.record and agent.record["code"] == STOPPED for agent in self._agents)
        if in_order and (self.signals or self.trouble is None):  # else that is their reason
            return STOPPED
        if self.signals:
            return 128 + self.signals[0]
        return 1 if self.trouble is not None else 0

    def _tick(self) -> None:
        time.sleep(TICK_S)
        if not self._has_announced_end and self._is_nearly_over():
            self._has_announced_end = True
            self._send_all(notice=True)
        for agent in self._agents:
            self._hear(agent)
        self._look_at_connections()
        self._show()
        recovery = self._recovery
        if recovery is not None and recovery.is_due() and (line := recovery.look()):
            self._recovery = None
            self._say(line)
        for request in self._requests.new():
            self._inspect().begin(request)
        if self._inspection is not None:
            self._inspection.tick()
            self.trouble = self.trouble or self._inspection.hang
        for agent in self._agents:
            if why := agent.loss():
                self._fail(why, agent)
        if not self._let_go and all(agent.is_done or agent.is_over for agent in self._agents):
            self._let_go = True
            self._send_all(go=True)

    def _inspect(self) -> RunInspection:
        if self._inspection is None:
            names = [agent.assignment.name for agent in self._agents]
            send, say = self._send_all, self._say
            self._inspection = RunInspection(self._spec, names, self._requests, send, say)
        return self._inspection

    def _fail(self, why: str, lost: _AgentConnection | None) -> None:
        """Have all agents end for the first failure, whoever has noticed it."""
        why = why[: message_forms.FAILURE_CHARACTERS]  # escapes in it may have made it longer
        if not self._has_failed:
            self._has_failed = True
            self._send_all(lost=why)
        if self.trouble is None:
            self.trouble, self.lost_node = why, lost.assignment.name if lost else None

    def _tick_until(self, deadline: float) -> None:
        """Run until the end or the deadline; longer while nodes still send their files."""
        while not self._is_over():
            patient = max(deadline, self._patient_until)
            if running_s() > min(patient + REST_S, max(patient, self._fed + 2.0)):
                return
            self._tick()
            if self._interrupted_twice():
                self._stop_all(130, "SIGINT", hurry=True)
                return

    def _hear(self, agent: _AgentConnection) -> None:
        """Take an agent's messages; one that has none of our forms is the last of that agent."""
        try:
            for message in agent.channel.receive():
                message_forms.check(message, agent.forms)
                is_file = "file" in message  # its name, and what is in it, stay as they are
                self._take(agent, message if is_file else message_forms.cleaned(message))
        except OddMessage as error:
            self._fail(f"{agent.place} {ODD}: {error}", agent)
            agent.channel.close()  # which ends it

    def _take(self, agent: _AgentConnection, message: dict[str, Any]) -> None:
        if not CONNECTIONS.isdisjoint(message):
            self._connect(agent, message)
        elif "file" in message:
            self._fed = running_s()
            host = None if agent.here is None else agent.here.get("host")
            agent.files(self._run_dir).take(message, host)
        elif "inspected" in message:
            self._inspect().take(agent.assignment.index, message["inspected"])
        elif "here" in message:
            self._welcome(agent, message["here"])
        elif "stopping" in message:
            if not self._patient_until and not self._spec.quiet:
                again = "; Ctrl-C again ends it at once" if signal.SIGINT in self.signals else ""
                how = "stopping at the end of this step, with a checkpoint"
                if message.get("all"):
                    how = f"stopping: workers got SIGTERM; {message['stopping']:g} s to end"
                self._say(f"{how}{again}")
            self._patient_until = running_s() + float(message["stopping"]) + STOP_S
        elif "failed" in message:
            lost = message["lost"]
            self._fail(message["failed"], None if lost is None else self._agents[lost])
        elif "done" in message:
            agent.is_done = True
        elif "ended" in message:
            agent.record = message["ended"]

    def _connect(self, agent: _AgentConnection, message: dict[str, Any]) -> None:
        """Take a report of a connection to node 0, or of the port that it has chosen."""
        meeting = self._meeting
        index = agent.assignment.index
        if "listening" in message:
            meeting.listens(message["listening"])
            where = {"address": agent.assignment.coordinator_address}
            for other in self._agents[1:]:
                other.channel.send(connect={**where, "port": message["listening"]["port"]})
        elif "accepted" in message:
            meeting.accepted(message["accepted"])
        elif "connected" in message:
            meeting.connected(index, message["connected"])
        elif "unreached" in message:
            meeting.unreached(index, message["unreached"])
        elif "broken" in message:
            meeting.broken(index, message["broken"], running_s())
        elif "master_port" in message:
            self._send_all(start=message["master_port"])

    def _look_at_connections(self) -> None:
        """Begin when all nodes are connected, and end the run if they are not, or one is lost."""
        meeting = self._meeting
        first = self._agents[0]
        for connection in meeting.newly_met():
            first.channel.send(keep=connection)
        if meeting.where is not None and not meeting.missing and not meeting.has_begun:
            meeting.has_begun = True
            first.channel.send(choose_port=True)
        if self._has_failed or self._let_go or self.trouble is not None:
            return
        if line := meeting.waiting(running_s()):
            about = {"text": line, "since_unix_s": time.time()}
            write_json(run_files.MEETING.path(self._run_dir), about)
            self._say(line)
        if why := meeting.failure(running_s()):
            self._fail(why, None)
        elif loss := meeting.loss(running_s()):
            lost = self._agents[loss.index]
            is_closed = loss.how == "closed"
            self._fail(closed(lost.place) if is_closed else silent(lost.place, SILENT_S), lost)

    def _welcome(self, agent: _AgentConnection, here: Mapping[str, Any]) -> None:
        agent.here = here
        ranks = dict.fromkeys(here["ranks"], here["node"])
        self._follower.nodes = {**self._follower.nodes, **ranks}
        known = [one.here for one in self._agents if one.here is not None]
        loopback = str(here["address"]).startswith("127.")
        if len(known) == len(self._agents) and not self._spec.quiet and not loopback:
            ways = (f"{one['node']} {one['address']} ({one['interface']})" for one in known)
            self._say(f"network: {', '.join(ways)}")

    def _send_all(self, **message: Any) -> None:
        for agent in self._agents:
            agent.channel.send(**message)

    def _stop_all(self, code: int, why: str, *, hurry: bool = False) -> None:
        self._send_all(stop=code, why=f"told to stop ({why})", signal=why, hurry=hurry)

    def _end_agents(self) -> None:
        if self._is_local:
            hurry = self._interrupted_twice
            process_tree.end_descendants(STOP_S, in_a_hurry=hurry, spared=self._others)
        else:  # ssh's remaining processes, such as a shared connection, are not ours
            started = [agent.process for agent in self._agents]
            process_tree.end_started(
                started, STOP_S, in_a_hurry=self._interrupted_twice, patience_s=self._patience_s
            )

    def _is_over(self) -> bool:
        return all(agent.is_over for agent in self._agents)

    def _say(self, line: str) -> None:
        try:
            print(line, flush=True)
        except BrokenPipeError:
            self.signals.append(signal.SIGPIPE)

    def _show(self, *, last: bool = False) -> None:
        try:
            self._follower.poll(last=last)
        except BrokenPipeError:  # as in `... | head`: a run whose output nobody reads ends
            self.signals.append(signal.SIGPIPE)

    def _interrupted_twice(self) -> bool:
        return self.signals.count(signal.SIGINT) > 1
