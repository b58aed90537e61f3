"""A run that this process leads: its agents, which live as long as the run, and its attempts.

An agent is started on each node once. It is spoken to through a channel: a pipe here, or one
through ssh, or a connection from a task of srun. In each attempt it gets an assignment. Whatever
happens to one of the agents, or to this process, the workers of all end together. After a failure
the agents that still live get the next assignment. Where an agent was lost, and its node answers,
another one is started. At the run's end all channels are closed, which ends the agents.

The states of an attempt, and what changes them; `_change` is the one place that does:

    RUNNING    each agent has its assignment: nodes connect, then workers start and run
    FAILED     an agent, or this side, has noticed a failure: all agents know, and record their ends
    STOPPING   all agents were told to stop: after a failure, or for a signal that came here
    OVER       each agent has sent its last record of the attempt, or is gone, or was too late

    RUNNING -> OVER is an attempt without failure.

The messages are in launch/nodes/channel.py, with their forms. What has none of these, or names a
file that is not the node's own, is that agent's failure: its channel is closed, and nothing more is
taken from it.

One thread does all of this; a second one, the heartbeat's, only writes to the channels. Signal
handlers append to a list, and `tick` looks at it.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from launch.agent.connections import Meeting
from launch.agent.inspection.run_inspection import RunInspection
from launch.agent.log_sync import Received
from launch.agent.processes import process_tree
from launch.agent.processes.process_tree import between_attempts, on_stop
from launch.agent.recovery import Recovery
from launch.deadlines import (
    AGENT_LOST_WHEN_SILENT_S,
    AGENT_STANDS_NAMED_AFTER_S,
    AGENTS_END_AFTER_STOP_S,
    AGENTS_PAUSE_BETWEEN_FILES_S,
    AGENTS_RECORD_LOST_PEER_S,
    AGENTS_SEND_FILES_S,
    MAIN_LOOP_TICK_S,
    MEETING_TICK_S,
)
from launch.ends import OF_ITS_OWN, End, Kind, cause_of
from launch.nodes.channel import (
    AgentProcess,
    Heartbeat,
    OddMessage,
    cleaned,
    forms_of_agent,
    read_agent,
    running_s,
    wait_for_news,
)
from launch.nodes.message_types import AgentEnd, AgentMessage, Here
from launch.runs.log_tail import Follower, RequestFile
from launch.spec import Assignment, Facts, LaunchSpec, NodeCommand, NodeFacts, assignments_of
from muster import run_files
from muster.errors import STOPPED
from muster.printable import signal_name
from muster.writing import full_disk, write_json, writing

# Starts an agent on each of these nodes, in their order, which are named by their index in the run.
# The heartbeat reaches each from its start on.
StartAgents: TypeAlias = Callable[[Mapping[int, NodeFacts], Heartbeat], Iterable[AgentProcess]]
Plan: TypeAlias = Callable[[LaunchSpec, Facts], Sequence[NodeCommand]]


@dataclass(frozen=True)
class SchedulersJob:
    """The scheduler's job in which a run is led."""

    job_id: str
    cluster: str | None = None
    # Whether the scheduler has announced the end of the job's time, and when it ends the job.
    is_nearly_over: Callable[[], bool] = lambda: False
    ends_unix_s: Callable[[], float | None] = lambda: None


class LedRun:
    """A run led by this process: `start` starts an attempt, `wait` waits for its end, and so on.

    `complete` adds to facts what only agents know, once they are started; `plan` makes commands
    of them. `close` lets all agents go.
    """

    def __init__(
        self,
        start_agents: StartAgents,
        plan: Plan,
        *,
        prefixes: bool,
        is_local: bool = False,  # the agents are on this machine, as children of this process
        patience_s: float = 0.0,  # for the processes that started the agents to end after them
        inside: SchedulersJob | None = None,
        complete: Callable[[Facts], Facts] = lambda facts: facts,
    ) -> None:
        self._start_agents = start_agents
        self._plan = plan
        self._prefixes = prefixes
        self._is_local = is_local
        self._patience_s = patience_s
        self._inside = inside or SchedulersJob(str(os.getpid()))
        self._complete = complete
        self.job_id = self._inside.job_id
        self.cluster = self._inside.cluster
        self.signals: list[int] = []
        self._heartbeat = Heartbeat()
        self._agents: dict[str, AgentConnection] = {}  # by node, those that were started last
        self._others: frozenset[int] = frozenset()  # children of this process that are not ours
        self._attempt: Attempt | None = None

    @property
    def cause(self) -> End | None:
        """What the last attempt ended for; None if it went well."""
        return None if self._attempt is None else self._attempt.cause

    @property
    def noticed_unix_s(self) -> float | None:
        """When this process heard of a failure first, in the last attempt."""
        return None if self._attempt is None else self._attempt.noticed_unix_s

    @property
    def shown(self) -> bytes:
        """The end of what was printed of its workers' output."""
        return b"" if self._attempt is None else self._attempt.shown

    def lives(self, node: NodeFacts) -> bool:
        """Whether the agent of this node can take part in another attempt, as far as is known."""
        agent = self._agents.get(_key(node))
        return agent is not None and agent.lives()

    def start(self, spec: LaunchSpec, facts: Facts) -> None:
        """Start an attempt: agents where none lives, and then the part of each.

        Raises:
            MusterError: an agent does not start.
            Stopped: a signal came before the attempt has begun.
        """
        if self._attempt is None and self._is_local:
            self._others = process_tree.children()
            process_tree.adopt_orphans()
        try:
            with between_attempts(self.signals):
                living = {_key(node) for node in facts.nodes if self.lives(node)}  # asked once
                self._leave_all_but(living)
                new = {at: node for at, node in enumerate(facts.nodes) if _key(node) not in living}
                if new:
                    started = self._start_agents(new, self._heartbeat)
                    for node, agent in zip(new.values(), started, strict=True):
                        self._agents[_key(node)] = AgentConnection(agent)
                facts = self._complete(facts)
            self._begin(spec, facts)
        except BaseException:
            self.close()
            raise

    def _leave_all_but(self, stay: Collection[str]) -> None:
        """End the agents that take no part in the next attempt, with what is left of them."""
        self._end([key for key in self._agents if key not in stay])

    def _begin(self, spec: LaunchSpec, facts: Facts) -> None:
        on_stop(lambda number, _: self.signals.append(number))
        signal.signal(signal.SIGTSTP, lambda *_: None)  # Ctrl-Z: a run has no other leader
        self._attempt = Attempt(
            spec,
            [self._agents[_key(node)] for node in facts.nodes],
            self.signals,
            self._inside.is_nearly_over,
            prefixes=self._prefixes,
        )
        plan = self._plan(spec, facts)
        self._attempt.start(assignments_of(spec, facts, plan, self._inside.ends_unix_s()))

    def wait(self) -> int:
        """Wait for the end of the attempt; return its exit code, see `Attempt.wait`.

        Agents that were lost or were too late are then ended: until then their workers may write
        into the run folder.
        """
        assert self._attempt is not None
        try:
            code = self._attempt.wait()
            self._end([key for key, agent in self._agents.items() if not agent.lives()])
        except BaseException:
            self.close()
            raise
        return code

    def close(self) -> None:
        """End all agents, and what they were started by; it may be called more than once."""
        self._heartbeat.stop()
        self._end([*self._agents])

    def _end(self, keys: Collection[str]) -> None:
        """End the agents of these nodes, and the processes that started them alone."""
        if not keys:
            return
        agents = [self._agents[key] for key in keys]
        for agent in agents:
            agent.channel.close()
        others = [agent.process for key, agent in self._agents.items() if key not in keys]
        if self._is_local:
            process_tree.end_descendants(
                AGENTS_END_AFTER_STOP_S,
                in_a_hurry=self._is_in_a_hurry,
                excluded={*self._others, *(process.pid for process in others)},
            )
        else:  # ssh's remaining processes, such as a shared connection, are not ours
            started = {agent.process for agent in agents}
            process_tree.end_started(
                [process for process in started if process not in others],
                AGENTS_END_AFTER_STOP_S,
                in_a_hurry=self._is_in_a_hurry,
                patience_s=self._patience_s,
            )
        # not before: a signal may come meanwhile, and `close` ends what is left
        self._agents = {key: agent for key, agent in self._agents.items() if key not in keys}

    def _is_in_a_hurry(self) -> bool:
        return self._attempt is not None and self._attempt.interrupted_twice


def _key(node: NodeFacts) -> str:
    """The node among those of its run, over all attempts."""
    return f"{node.spec.name} {node.name}"


CONNECTIONS = {"listening", "accepted", "connected", "unreached", "broken", "master_port"}


class AgentConnection:
    """The leader's side of one agent, which lives as long as the run, or until it is lost."""

    def __init__(self, started: AgentProcess) -> None:
        self.process = started.process
        self.channel = started.channel
        self._message_of = started.message_of
        self._leaves = False  # it was sent a signal, and ends after this attempt

    def lives(self) -> bool:
        """Whether it can take part in another attempt, as far as is known by now.

        Between two attempts nobody else looks at its channel, perhaps for minutes.
        """
        if not self.channel.ended:
            self.channel.put_back(self.channel.receive())
        is_heard = self.channel.silent_s <= AGENT_LOST_WHEN_SILENT_S
        return is_heard and not self._leaves and not self.channel.ended

    def begin(self, assignment: Assignment, run_dir: Path) -> None:
        """Begin its part of an attempt."""
        self.assignment = assignment
        self.forms = forms_of_agent(assignment)
        self._run_dir = run_dir
        self._files: Received | None = None
        self.here: Here | None = None  # where it is, once that is known
        self.is_done = False
        self._loss: End | None = None
        self.record: AgentEnd | None = None  # of the end of its attempt
        self._is_named = False  # as one whose work stands still
        self.channel.send(**self._message_of(assignment))

    @property
    def files(self) -> Received:
        """What comes of its files, from a node with a disk of its own."""
        if self._files is None:
            self._files = Received(self._run_dir, self.assignment)
        return self._files

    @property
    def place(self) -> str:
        name = self.assignment.name
        return name if self.here is None else f"{name} ({self.here['address']})"

    def take_record(self, message: AgentMessage) -> None:
        """Take its last message of the attempt: what it has recorded, and whether it leaves."""
        self.record = message["ended"]
        self._leaves = bool(message.get("leaves"))

    def standing(self, message: AgentMessage) -> str | None:
        """What to print of an agent whose work stands still, or goes on after that; once."""
        stands_s = float(message.get("stands_s", 0.0))
        if not self._is_named and stands_s > AGENT_STANDS_NAMED_AFTER_S:
            self._is_named = True
            what = str(message["waits_for"])
            hint = "; is its disk full or slow?" if what.startswith("/") else ""
            return f"{self.place} has done nothing for {stands_s:.0f} s: it waits for {what}{hint}"
        if self._is_named and not stands_s:
            self._is_named = False
            return f"{self.place} goes on"
        return None

    @property
    def is_over(self) -> bool:
        return self.record is not None or self.channel.ended

    def loss(self) -> End | None:
        """Why nothing more will come of it; None while it lives, or where all has come."""
        if self.record is not None or self._loss is not None:
            return self._loss
        patience_s = AGENT_LOST_WHEN_SILENT_S
        if not self.channel.has_message:  # it still has to log in, and to load its modules
            patience_s = max(AGENT_LOST_WHEN_SILENT_S, self.assignment.spec.join_s)
        if self.channel.ended:
            self._loss = self.end_of(Kind.GONE)
        elif self.channel.silent_s > patience_s:
            since_unix_s = time.time() - self.channel.silent_s
            self._loss = self.end_of(Kind.SILENT, f"{patience_s:.0f} s", since_unix_s)
        return self._loss

    def end_of(self, kind: Kind, message: str = "", time_unix_s: float | None = None) -> End:
        """An end of this agent, as its leader sees it."""
        at = time.time() if time_unix_s is None else time_unix_s
        address = "" if self.here is None else str(self.here["address"])
        return End(kind, self.assignment.name, at, message=message, address=address)


class State(Enum):
    """The state of an attempt; see above."""

    RUNNING = "running"
    FAILED = "failed"
    STOPPING = "stopping"
    OVER = "over"


class Attempt:
    """One attempt with these agents, in the order of their nodes; `start` starts it.

    `signals`: the stop signals that this process receives. `is_nearly_over`: whether a scheduler
    has announced the end of the job's time.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        agents: Sequence[AgentConnection],
        signals: list[int],
        is_nearly_over: Callable[[], bool],
        *,
        prefixes: bool,
    ) -> None:
        self._spec = spec
        self._run_dir = spec.run_dir
        self._agents = agents
        self._signals = signals
        self._is_nearly_over = is_nearly_over
        self._state = State.RUNNING
        self._looks_at_s = 0.0  # when it looks at more than messages next
        self._ends_s = 0.0  # by when the state has to change
        self._has_announced_end = False  # of the job's time, to all agents
        self._may_leave = False  # whether all agents know that all have done their part
        self._ends: list[End] = []  # what has ended, in the order in which this side heard of it
        self._first: End | None = None  # the first failure among these
        self.noticed_unix_s: float | None = None  # when this side heard of it
        self.cause: End | None = None  # judged when it is over
        self._fed_s = 0.0  # when a node last sent a part of its files, or that it waits for a disk
        self._patient_s = 0.0  # deadline of workers that are stopping cleanly
        self._follower = Follower(spec.run_dir, prefixes=prefixes)
        self._recovery = self._recovers() if spec.attempt else None
        self._requests = RequestFile(spec.run_dir)
        self._inspection: RunInspection | None = None  # made at the first request or answer

    @property
    def shown(self) -> bytes:
        """The end of what was printed of the workers' output."""
        return self._follower.tail

    def start(self, assignments: Sequence[Assignment]) -> None:
        """Give each agent its part."""
        self._proof = self._run_dir / assignments[0].proof
        with writing(self._proof):
            self._proof.parent.mkdir(exist_ok=True)
            self._proof.touch()
        for agent, assignment in zip(self._agents, assignments, strict=True):
            agent.begin(assignment, self._run_dir)
        names = [assignment.name for assignment in assignments]
        self._meeting = Meeting(names, self._spec.join_s, running_s())

    def wait(self) -> int:
        """Wait for the end; return the exit code.

        0 if every agent's part ended with 0; 75 if the workers stopped cleanly, to be continued;
        128 + its number if a signal ended the run; else 1.
        """
        try:
            while self._state is not State.OVER:
                self._tick()
                self._advance()
        finally:
            if self._inspection is not None:
                self._inspection.finish()
            for agent in self._agents:
                if not agent.is_over:  # it is late: it ends with its channel, and its workers, too
                    agent.channel.close()
            self._proof.unlink(missing_ok=True)
            self._show(last=True)
        self.cause = self._judge()
        in_order = any(agent.record and agent.record["code"] == STOPPED for agent in self._agents)
        if in_order and (self._signals or self._first is None):  # else that is their reason
            return STOPPED
        if self._signals:
            return 128 + self._signals[0]
        codes = [agent.record["code"] for agent in self._agents if agent.record is not None]
        return 1 if self._first is not None or any(codes) else 0

    def _judge(self) -> End | None:
        """The cause among all that has ended, in whatever order this side heard of it."""
        ends = [*self._ends, *self._gone()]
        if self._inspection is not None and (timeout := self._inspection.timeout_for(ends)):
            ends.append(timeout)
        nodes = [agent.assignment.name for agent in self._agents]
        cause = cause_of(ends, nodes) if ends else None
        if cause is None or cause.kind in OF_ITS_OWN:
            return cause
        if line := full_disk(run_files.EXIT.path(self._run_dir)):  # what is missing fitted nowhere
            ends.append(End(Kind.FULL, "", time.time(), message=line))
        return cause_of(ends, nodes)

    def _gone(self) -> list[End]:
        """Nodes that are silent, where a scheduler was quicker: it has sent all others a signal."""
        silent = [agent for agent in self._agents if agent.record is None]
        signalled = {end.node for end in self._ends if end.kind is Kind.SIGNAL}
        others = {agent.assignment.name for agent in self._agents if agent not in silent}
        if not others or not signalled >= others:
            return []
        return [agent.end_of(Kind.GONE) for agent in silent]

    def _advance(self) -> None:
        """Change the state where that is due."""
        if all(agent.is_over for agent in self._agents):
            self._change(State.OVER)
        elif self._state is State.RUNNING:
            if self._signals:
                self._change(State.STOPPING)
            elif self._first is not None:
                self._change(State.FAILED)
        elif self.interrupted_twice:
            self._stop_all(128 + signal.SIGINT, "SIGINT", hurry=True)
            self._change(State.OVER)
        elif running_s() > self._latest_s():
            self._change(State.STOPPING if self._state is State.FAILED else State.OVER)

    def _change(self, state: State) -> None:
        self._state = state
        if state is State.FAILED:
            self._ends_s = running_s() + AGENTS_RECORD_LOST_PEER_S
        elif state is State.STOPPING:
            self._ends_s = running_s() + AGENTS_END_AFTER_STOP_S
            if self._first is not None and not self._signals:
                self._stop_all(1, self._first.line)
            else:
                self._stop_all(128 + self._signals[0], signal_name(self._signals[0]))

    def _latest_s(self) -> float:
        """By when the state has to change: later while workers may stop, or files still come."""
        patient_s = max(self._ends_s, self._patient_s)
        return min(
            patient_s + AGENTS_SEND_FILES_S,
            max(patient_s, self._fed_s + AGENTS_PAUSE_BETWEEN_FILES_S),
        )

    def _tick(self) -> None:
        """Hear at once what has come; look at all else once a tick, however much comes.

        Each of many agents sends a sign of life a second, and files may be on a file server.
        """
        news = wait_for_news(
            [agent.channel for agent in self._agents], max(self._looks_at_s - running_s(), 0.0)
        )
        is_due = running_s() >= self._looks_at_s
        heard = [agent for agent in self._agents if is_due or agent.channel in news]
        for agent in heard:
            self._hear(agent)
        if self._meeting.has_begun:
            self._look_for_lost_nodes()
        else:
            self._gather()
        if is_due:
            tick_s = MAIN_LOOP_TICK_S if self._meeting.has_begun else MEETING_TICK_S
            self._looks_at_s = running_s() + tick_s
            self._look()
        for agent in heard:
            if lost := agent.loss():
                self._hear_of(lost)
        if not self._may_leave and all(agent.is_done or agent.is_over for agent in self._agents):
            self._may_leave = True
            self._send_all(go=True)

    def _look(self) -> None:
        """Do what no message asks for."""
        if not self._has_announced_end and self._is_nearly_over():
            self._has_announced_end = True
            self._send_all(notice=True)
        self._show()
        recovery = self._recovery
        if recovery is not None and recovery.is_due() and (line := recovery.look()):
            self._recovery = None
            self._say(line)
        for request in self._requests.new():
            self._inspect().begin(request)
        if self._inspection is not None:
            self._inspection.tick()
            if self._inspection.hang is not None:
                self._hear_of(self._inspection.hang, tells=False)

    def _recovers(self) -> Recovery:
        channel = self._agents[0].channel
        return Recovery(
            self._run_dir,
            self._spec.attempt + 1,
            has_output=lambda: bool(self._follower.tail),
            clock_offset_s=lambda: -channel.clock_offset_s,
        )

    def _inspect(self) -> RunInspection:
        if self._inspection is None:
            names = [agent.assignment.name for agent in self._agents]
            self._inspection = RunInspection(
                self._spec, names, self._requests, self._send_all, self._say
            )
        return self._inspection

    def _hear_of(self, end: End, *, tells: bool = True) -> None:
        """Note an end; all agents end for the first failure, whoever has noticed it.

        `tells`: whether they are told now; after a hang they are stopped.
        """
        if end in self._ends:
            return
        self._ends.append(end)
        if end.is_failure:
            self._fail(end, tells=tells)

    def _fail(self, end: End, *, tells: bool = True) -> None:
        """Have all agents end for this, if nothing has failed before."""
        if self._first is None:
            self._first = end
            self.noticed_unix_s = time.time()
            if tells:
                self._send_all(lost=end.line)

    def _hear(self, agent: AgentConnection) -> None:
        """Take an agent's messages; one that has none of our forms is the last of that agent."""
        try:
            for received in agent.channel.receive():
                message = read_agent(received, agent.forms)
                is_file = "file" in message  # its name, and what is in it, stay as they are
                is_end = "failed" in message or "worker_end" in message  # which cleans itself
                is_whole = is_file or is_end
                self._take(agent, message if is_whole else cleaned(message))
        except OddMessage as error:
            self._hear_of(agent.end_of(Kind.ODD, str(error)))
            agent.channel.close()  # which ends it

    def _take(self, agent: AgentConnection, message: AgentMessage) -> None:
        if line := agent.standing(message):
            self._say(line)
        if self._inspection is not None:
            self._inspection.note_wait(agent.assignment.index, message.get("waits_for"))
        if "stands_s" in message:  # what it sends is late
            self._fed_s = running_s()
        elif not CONNECTIONS.isdisjoint(message):
            self._connect(agent, message)
        elif "file" in message:
            self._fed_s = running_s()
            host = None if agent.here is None else agent.here.get("host")
            agent.files.take(message, host)
        elif "inspected" in message:
            self._inspect().take(agent.assignment.index, message["inspected"])
        elif "here" in message:
            self._welcome(agent, message["here"])
        elif "stopping" in message:
            if not self._patient_s and not self._spec.quiet:
                again = "; Ctrl-C again ends it at once" if signal.SIGINT in self._signals else ""
                how = "stopping at the end of this step, with a checkpoint"
                if message.get("all"):
                    how = f"stopping: workers got SIGTERM; {message['stopping']:g} s to end"
                self._say(f"{how}{again}")
            self._patient_s = running_s() + float(message["stopping"]) + AGENTS_END_AFTER_STOP_S
        elif "failed" in message:
            self._take_end(agent, message["failed"])
        elif "worker_end" in message:
            self._take_end(agent, message["worker_end"])
        elif "done" in message:
            agent.is_done = True
        elif "ended" in message:
            agent.take_record(message)
            is_early = message["ended"]["code"] and not agent.is_done
            if is_early and self._state is State.RUNNING and not self._signals:
                self._fail(self._unnamed_failure(agent))

    def _unnamed_failure(self, agent: AgentConnection) -> End:
        """Why a node has ended its part of an attempt, if it says of no end that it is a failure.

        Some of its ranks may have stopped in order, and others be done.
        """
        own = [end for end in self._ends if end.node == agent.assignment.name]
        return cause_of(own) or agent.end_of(Kind.OTHER, f"{agent.place} ended its part early")

    def _connect(self, agent: AgentConnection, message: AgentMessage) -> None:
        """Take a report of a connection to node 0, or of the port that it has chosen."""
        meeting = self._meeting
        index = agent.assignment.index
        if "listening" in message:
            meeting.listens(message["listening"])
            where = {
                "address": agent.assignment.coordinator_address,
                "port": message["listening"]["port"],
            }
            for other in self._agents[1:]:
                other.channel.send(connect=where)
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
            if self._recovery is not None:
                self._recovery.connected_unix_s = time.time()

    def _gather(self) -> None:
        """Have workers start when all nodes are connected; fail if they are not in time."""
        meeting = self._meeting
        node_0 = self._agents[0]
        for connection in meeting.newly_met():
            node_0.channel.send(keep=connection)
        if meeting.where is not None and not meeting.missing:
            meeting.has_begun = True
            node_0.channel.send(choose_port=True)
        if self._state is not State.RUNNING:
            return
        if line := meeting.waiting(running_s()):
            about = {"text": line, "since_unix_s": time.time()}
            write_json(run_files.MEETING.path(self._run_dir), about)
            self._say(line)
        if why := meeting.failure(running_s()):
            self._hear_of(self._agents[meeting.at_fault].end_of(Kind.APART, why))

    def _look_for_lost_nodes(self) -> None:
        """Fail if a node has lost its connection to node 0, while its agent may live."""
        loss = self._meeting.loss(running_s())
        if loss is None or self._state is not State.RUNNING or self._may_leave:
            return
        lost = self._agents[loss.index]
        since_unix_s = time.time() - loss.for_s
        if loss.how == "closed":
            self._hear_of(lost.end_of(Kind.GONE, time_unix_s=since_unix_s))
        else:
            silent_s = AGENT_LOST_WHEN_SILENT_S
            self._hear_of(lost.end_of(Kind.SILENT, f"{silent_s:.0f} s", since_unix_s - silent_s))

    def _take_end(self, agent: AgentConnection, value: Mapping[str, object]) -> None:
        """Take an end that happened on an agent's node, under the name that it has here."""
        end = End.from_json(value)
        if end is not None:
            self._hear_of(replace(end, node=agent.assignment.name))

    def _welcome(self, agent: AgentConnection, here: Here) -> None:
        agent.here = here
        ranks = dict.fromkeys(here["ranks"], here["node"])
        self._follower.nodes = {**self._follower.nodes, **ranks}
        known = [other.here for other in self._agents if other.here is not None]
        loopback = str(here["address"]).startswith("127.")
        if len(known) == len(self._agents) and not self._spec.quiet and not loopback:
            ways = (f"{where['node']} {where['address']} ({where['interface']})" for where in known)
            self._say(f"network: {', '.join(ways)}")

    def _send_all(self, **message: object) -> None:
        for agent in self._agents:
            agent.channel.send(**message)

    def _stop_all(self, code: int, why: str, *, hurry: bool = False) -> None:
        self._send_all(stop=code, why=f"told to stop ({why})", signal=why, hurry=hurry)

    def _say(self, line: str) -> None:
        try:
            print(line, flush=True)
        except BrokenPipeError:
            self._signals.append(signal.SIGPIPE)

    def _show(self, *, last: bool = False) -> None:
        try:
            self._follower.poll(last=last)
        except BrokenPipeError:  # as in `... | head`: a run whose output nobody reads ends
            self._signals.append(signal.SIGPIPE)

    @property
    def interrupted_twice(self) -> bool:
        """Whether the user wants the run to end at once."""
        return self._signals.count(signal.SIGINT) > 1
