"""A run that this process leads: its agents, which live as long as the run, and its attempts.

An agent is started once on each node. Its leader reaches it through a channel: a pipe on this
machine, a pipe through ssh, or a connection from an srun task. In each attempt the agent gets an
assignment. Whatever happens to one of the agents, or to this process, all workers end together.
After a failure the agents that still live get the next assignment. If an agent was lost but its
node answers, a new agent is started there. At the run's end all channels are closed, which ends the
agents.

An attempt is over when each agent has sent its last message about it, or is gone. Until then
`Attempt.wait` goes through these stages in order:

    - each agent has its assignment: nodes connect, then workers start and run
    - after a failure all agents are told of it, and have a moment to record their ends
    - then, or after a signal to this process, all agents are told to stop
    - agents that take too long are left behind: closing their channels ends them

Each wait has its limit in launch/deadlines.py, and is extended while workers save a checkpoint or
files are still arriving.

The messages are in launch/nodes/messages.py. Any other message, or a message about another node,
its ranks or its files, counts as a failure of the agent that sent it: the channel is closed, and
nothing more is accepted from that agent.

One thread does all of this. A second thread, the heartbeat's, only writes to the channels. Signal
handlers append to a list, which the waiting loops check.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from configs import console
from launch.agent import recovery
from launch.agent.connections import Meeting
from launch.agent.inspection.run_inspection import RunInspection
from launch.agent.log_sync import ReceivedFiles
from launch.agent.processes import process_tree
from launch.agent.processes.process_tree import between_attempts, on_stop
from launch.deadlines import (
    AGENT_LOST_WHEN_SILENT_S,
    AGENT_STANDS_NAMED_AFTER_S,
    AGENT_STARTER_ENDS_S,
    AGENTS_END_AFTER_STOP_S,
    AGENTS_PAUSE_BETWEEN_FILES_S,
    AGENTS_RECORD_LOST_PEER_S,
    AGENTS_SEND_FILES_S,
    MAIN_LOOP_TICK_S,
    RECOVERY_LOOKED_FOR_EVERY_S,
)
from launch.ends import End, Kind, cause_of
from launch.nodes.channel import AgentProcess, Heartbeat, running_s, wait_for_news
from launch.nodes.messages import (
    Accepted,
    Beat,
    Broken,
    ChoosePort,
    ChosenPort,
    Connect,
    Connected,
    Done,
    Ended,
    Failed,
    File,
    FromAgent,
    Inspected,
    InspectedAll,
    KeepConnection,
    Listening,
    Lost,
    Message,
    NodeReady,
    NoProgress,
    Note,
    Notice,
    OddMessage,
    Released,
    Start,
    Stop,
    Stopping,
    Unreached,
    WaitedInVain,
    WorkerEnded,
    check_sender,
)
from launch.nodes.scheduler import SchedulerJob
from launch.runs import last_output
from launch.runs.log_tail import Follower, RequestFile
from launch.spec import Assignment, Facts, LaunchSpec, NodeCommand, NodeFacts, assignments_of
from muster import run_files
from muster.errors import STOPPED
from muster.printable import counted, listed, on_one_line, printable, signal_name
from muster.terminal import in_one_line
from muster.writing import full_disk, write_json, writing

# Starts an agent on each of these nodes, in their order. The nodes are given by their index in the
# run. The heartbeat reaches each agent from its start on.
StartAgents: TypeAlias = Callable[[Mapping[int, NodeFacts], Heartbeat], Iterable[AgentProcess]]
Plan: TypeAlias = Callable[[LaunchSpec, Facts], Sequence[NodeCommand]]


class LedRun:
    """A run led by this process: `start` starts an attempt, `wait` waits for its end, and so on.

    `complete` adds facts that are known only once agents have started. `plan` makes each node's
    command from the facts. `close` ends all agents.
    """

    def __init__(
        self,
        start_agents: StartAgents,
        plan: Plan,
        *,
        prefixes: bool,
        is_local: bool = False,  # the agents are on this machine, as children of this process
        patience_s: float = 0.0,  # how long the processes that start agents may outlive them
        job: SchedulerJob | None = None,  # the job in which the run is led
        # whether the scheduler has announced the end of the job's time
        is_nearly_over: Callable[[], bool] = lambda: False,
        complete: Callable[[Facts], Facts] = lambda facts: facts,
    ) -> None:
        self._start_agents = start_agents
        self._plan = plan
        self._prefixes = prefixes
        self._is_local = is_local
        self._patience_s = patience_s
        self._job = job
        self._is_nearly_over = is_nearly_over
        self._complete = complete
        self.job_id = job.name if job else str(os.getpid())
        self.cluster = job.cluster if job else None
        self.signals: list[int] = []
        self._heartbeat = Heartbeat()
        self._agents: dict[str, AgentConnection] = {}  # each node's latest agent
        # children of this process that are not agents of this run
        self._other_children: frozenset[int] = frozenset()
        self._attempt: Attempt | None = None

    @property
    def cause(self) -> End | None:
        """Why the last attempt ended; None if it went well."""
        return None if self._attempt is None else self._attempt.cause

    @property
    def output_tail(self) -> bytes:
        """The last part of the workers' output that was printed."""
        return b"" if self._attempt is None else self._attempt.output_tail

    def lives(self, node: NodeFacts) -> bool:
        """Whether the agent of this node can take part in another attempt, as far as is known."""
        agent = self._agents.get(_node_key(node))
        return agent is not None and agent.lives()

    def start(self, spec: LaunchSpec, facts: Facts) -> None:
        """Start an attempt: first agents on nodes that have none, then each agent's part.

        Raises:
            MusterError: an agent does not start.
            Stopped: a signal came before the attempt had begun.
        """
        if self._attempt is None and self._is_local:
            self._other_children = process_tree.children()
            process_tree.adopt_orphans()
        try:
            with between_attempts(self.signals):
                # each node is asked only once, since its answer may change meanwhile
                living = {_node_key(node) for node in facts.nodes if self.lives(node)}
                self._end_all_but(living)
                new = {
                    index: node
                    for index, node in enumerate(facts.nodes)
                    if _node_key(node) not in living
                }
                if new:
                    started = self._start_agents(new, self._heartbeat)
                    for node, agent in zip(new.values(), started, strict=True):
                        self._agents[_node_key(node)] = AgentConnection(agent)
                facts = self._complete(facts)
            self._begin(spec, facts)
        except BaseException:
            self.close()
            raise

    def _end_all_but(self, keys: Collection[str]) -> None:
        """End the agents of all other nodes, and the processes that have started them."""
        self._end([key for key in self._agents if key not in keys])

    def _begin(self, spec: LaunchSpec, facts: Facts) -> None:
        on_stop(lambda number, _: self.signals.append(number))
        # Ctrl-Z has no effect: no other process could lead
        signal.signal(signal.SIGTSTP, lambda *_: None)
        self._attempt = Attempt(
            spec,
            [self._agents[_node_key(node)] for node in facts.nodes],
            self.signals,
            self._is_nearly_over,
            prefixes=self._prefixes,
        )
        plan = self._plan(spec, facts)
        ends_unix_s = self._job.end_unix_s() if self._job else None
        self._attempt.start(assignments_of(spec, facts, plan, ends_unix_s))

    def wait(self) -> int:
        """Wait for the end of the attempt; return its exit code, see `Attempt.wait`.

        Agents that were lost or too late are then ended, since their workers may still write into
        the run folder.
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
        """End all agents, and the processes that started them; may be called more than once."""
        self._heartbeat.stop()
        self._end([*self._agents])

    def _end(self, keys: Collection[str]) -> None:
        """End the agents of these nodes, and the processes that have started only these agents."""
        if not keys:
            return
        agents = [self._agents[key] for key in keys]
        for agent in agents:
            agent.channel.close()
        others = [agent.process for key, agent in self._agents.items() if key not in keys]
        if self._is_local:
            process_tree.end_descendants(
                AGENTS_END_AFTER_STOP_S,
                at_once=self._ends_at_once,
                excluded={*self._other_children, *(process.pid for process in others)},
            )
            for agent in agents:
                agent.process.poll()  # psutil has waited for it
        else:  # other processes of ssh, such as a shared connection, are not ended
            started = {agent.process for agent in agents}
            process_tree.end_started(
                [process for process in started if process not in others],
                AGENTS_END_AFTER_STOP_S,
                at_once=self._ends_at_once,
                patience_s=self._patience_s,
            )
        # these agents are forgotten last: if a signal interrupts this, `close` ends them
        self._agents = {key: agent for key, agent in self._agents.items() if key not in keys}

    def _ends_at_once(self) -> bool:
        return self._attempt is not None and self._attempt.ends_at_once


def _node_key(node: NodeFacts) -> str:
    """The key of a node, which is the same in all attempts of its run."""
    return f"{node.spec.name} {node.name}"


class AgentConnection:
    """The leader's side of one agent, which lives as long as the run, or until it is lost."""

    def __init__(self, started: AgentProcess) -> None:
        self.process = started.process
        self.channel = started.channel
        self._message_of = started.message_of
        self._leaves = False  # the agent got a signal, and ends after this attempt
        # `begin` sets all of these for each attempt
        self.assignment: Assignment
        self._run_dir: Path
        self._files: ReceivedFiles | None = None
        self.here: NodeReady | None = None  # where the agent is, once it has reported that
        self.is_done = False
        self._loss: End | None = None
        self.end_code: int | None = None  # the exit code of its part, once that is over
        self._is_stall_printed = False  # whether a line about the agent's stall was printed

    def lives(self) -> bool:
        """Whether the agent can take part in another attempt, as far as is known by now.

        This reads the channel, since nothing else does so between two attempts, perhaps for
        minutes.
        """
        if not self.channel.ended:
            self.channel.put_back(self.channel.receive())
        is_heard = self.channel.silent_s <= AGENT_LOST_WHEN_SILENT_S
        return is_heard and not self._leaves and not self.channel.ended

    def begin(self, assignment: Assignment, run_dir: Path) -> None:
        """Begin its part of an attempt."""
        self.assignment = assignment
        self._run_dir = run_dir
        self._files = None
        self.here = None
        self.is_done = False
        self._loss = None
        self.end_code = None
        self._is_stall_printed = False
        self.channel.send(self._message_of(assignment))

    @property
    def files(self) -> ReceivedFiles:
        """The files that a node with its own disk sends."""
        if self._files is None:
            self._files = ReceivedFiles(self._run_dir, self.assignment)
        return self._files

    @property
    def label(self) -> str:
        """The node's name in messages, with its address if that is known."""
        name = self.assignment.name
        return name if self.here is None else f"{name} ({self.here.address})"

    def take_end(self, message: Ended) -> None:
        """Take the last message of an attempt."""
        self.end_code = message.code
        self._leaves = message.leaves

    def stall_line(self, beat: Beat) -> str | None:
        """The line to print when the agent's work stalls, or continues after a stall; or None."""
        if not self._is_stall_printed and beat.stands_s > AGENT_STANDS_NAMED_AFTER_S:
            self._is_stall_printed = True
            hint = "; is its disk full or slow?" if beat.waits_for.startswith("/") else ""
            return (
                f"{self.label} has been waiting for {beat.waits_for} for {beat.stands_s:.0f} s"
                f"{hint}"
            )
        if self._is_stall_printed and not beat.stands_s:
            self._is_stall_printed = False
            return f"{self.label} is no longer waiting"
        return None

    @property
    def is_over(self) -> bool:
        return self.end_code is not None or self.channel.ended

    def loss(self) -> End | None:
        """Why nothing more will come from the agent; None while it lives, or once it is done."""
        if self.end_code is not None or self._loss is not None:
            return self._loss
        patience_s = AGENT_LOST_WHEN_SILENT_S
        if not self.channel.has_message:  # it may still be logging in or importing its modules
            patience_s = max(AGENT_LOST_WHEN_SILENT_S, self.assignment.spec.join_s)
        if self.channel.ended and (why := self._why_not_started()):
            self._loss = self.end_of(Kind.REFUSED, why)
        elif self.channel.ended:
            self._loss = self.end_of(Kind.NODE_LOST)
        elif self.channel.silent_s > patience_s:
            since_unix_s = time.time() - self.channel.silent_s
            self._loss = self.end_of_silence(patience_s, since_unix_s)
        return self._loss

    def _why_not_started(self) -> str:
        """Why the agent ended by itself before it sent anything, from its stderr; "" if it did not.

        After a signal or a cut connection, the exit code is not from 1 to 127.
        """
        if self.channel.has_message:
            return ""
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(AGENT_STARTER_ENDS_S)
            if 0 < code < 128:
                log = run_files.AGENT_ERRORS.path(self._run_dir, node=self.assignment.index)
                _, text = last_output.last_log_lines([log]) or (log, f"exit code {code}")
                last = in_one_line(text).splitlines()[-1].removeprefix("error: ")
                return printable(f"{self.assignment.name}: its agent did not start: {last}")
        return ""

    def end_of(self, kind: Kind, message: str = "", time_unix_s: float | None = None) -> End:
        """An end of this agent, as its leader sees it."""
        time_unix_s = time.time() if time_unix_s is None else time_unix_s
        address = "" if self.here is None else self.here.address
        return End(kind, self.assignment.name, time_unix_s, message=message, address=address)

    def end_of_silence(self, silent_s: float, since_unix_s: float) -> End:
        """The end of this agent, from which nothing has come for `silent_s` seconds."""
        end = self.end_of(Kind.NODE_LOST, time_unix_s=since_unix_s)
        text = f"no message from {end.node_label} for {silent_s:.0f} s: is its network link down?"
        return replace(end, message=text)


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
        self._is_ending = False  # after a failure or a signal
        self._looks_at_s = 0.0  # when it next checks more than messages
        self._has_announced_end = False  # all agents were told that the job's time is nearly over
        self._has_released_agents = False  # all agents were told that all have done their part
        self._ends: list[End] = []  # all ends, in the order in which this side heard of them
        self._first: End | None = None  # the first failure among these ends
        self.cause: End | None = None  # decided when the attempt is over
        # when a node last sent files, or reported that its work is stalled
        self._last_file_s = 0.0
        self._workers_deadline_s = 0.0  # by when workers that are stopping cleanly must be done
        self._notes: dict[str, list[str]] = {}  # to be printed, each with the nodes that sent it
        self._follower = Follower(spec.run_dir, prefixes=prefixes)
        self._fault_unix_s: float | None = None  # of the fault from which this attempt recovers
        self._looks_for_recovery_at_s = 0.0  # the next time; each look reads the run folder's disk
        self._requests = RequestFile(spec.run_dir)
        self._inspection: RunInspection | None = None  # made at the first request or answer
        self._meeting: Meeting | None = None  # if nodes connect
        # `start` sets this
        self._proof: Path

    @property
    def output_tail(self) -> bytes:
        """The last part of the workers' output that was printed."""
        return self._follower.tail

    def start(self, assignments: Sequence[Assignment]) -> None:
        """Give each agent its part."""
        console.update_status(f"starting agents on {counted(len(self._agents), 'node')}")
        self._proof = self._run_dir / assignments[0].disk_marker
        with writing(self._proof):
            self._proof.parent.mkdir(exist_ok=True)
            self._proof.touch()
        for agent, assignment in zip(self._agents, assignments, strict=True):
            agent.begin(assignment, self._run_dir)
        if assignments[0].nodes_connect:
            names = [assignment.name for assignment in assignments]
            self._meeting = Meeting(names, self._spec.join_s, running_s())
        else:
            self._agents[0].channel.send(ChoosePort())

    def wait(self) -> int:
        """Wait for the end; return the exit code.

        It is 0 if every agent's part ended with 0; 75 if the workers stopped cleanly, so that the
        run can continue; 128 plus the signal's number if a signal ended the run; otherwise 1.
        """
        try:
            self._wait_for_agents()
        finally:
            console.end_status()
            if self._inspection is not None:
                self._inspection.finish()
            for agent in self._agents:
                if not agent.is_over:  # it is too late: the end of its channel ends it
                    agent.channel.close()
            self._proof.unlink(missing_ok=True)
            self._print_notes()
            self._print_output(last=True)
            self._report_recovery()  # its first work may have come after the last look
        self.cause = self._judge()
        codes = [agent.end_code for agent in self._agents]
        in_order = STOPPED in codes
        if in_order and (self._signals or self._first is None):  # else a failure stopped them
            return STOPPED
        if self._signals:
            return 128 + self._signals[0]
        return 1 if self._first is not None or any(codes) else 0

    def _judge(self) -> End | None:
        """The cause among all ends, regardless of the order in which this side heard of them."""
        ends = [*self._ends, *self._silent_nodes()]
        if self._inspection is not None and (timeout := self._inspection.timeout_for(ends)):
            ends.append(timeout)
        nodes = [agent.assignment.name for agent in self._agents]
        cause = cause_of(ends, nodes) if ends else None
        if cause is None or not (cause.kind.can_be_consequence or cause.lacks_reason):
            return cause
        if line := full_disk(run_files.EXIT.path(self._run_dir)):  # then records may be missing
            ends.append(End(Kind.FULL, "", time.time(), message=line))
        return cause_of(ends, nodes)

    def _silent_nodes(self) -> list[End]:
        """The ends of silent nodes, if a scheduler has sent a signal to all other nodes."""
        silent = [agent for agent in self._agents if agent.end_code is None]
        signalled = {end.node for end in self._ends if end.was_signalled}
        others = {agent.assignment.name for agent in self._agents if agent not in silent}
        if not others or not signalled >= others:
            return []
        return [agent.end_of(Kind.NODE_LOST) for agent in silent]

    def _wait_for_agents(self) -> None:
        """Wait until the attempt is over; once it has failed, only as long as agents have time."""
        self._tick()  # agents that were lost before their assignment are noticed, too
        while not (self._is_over or self._signals or self._first is not None):
            self._tick()
        self._is_ending = True
        if not self._signals:
            self._tick_within(AGENTS_RECORD_LOST_PEER_S)
        if not self._is_over:
            if self._first is not None and not self._signals:
                self._stop_all(1, self._first.line)
            else:
                self._stop_all(128 + self._signals[0], signal_name(self._signals[0]))
            self._tick_within(AGENTS_END_AFTER_STOP_S)
        if not self._is_over and self.ends_at_once:
            self._stop_all(128 + signal.SIGINT, "SIGINT", at_once=True)

    @property
    def _is_over(self) -> bool:
        return all(agent.is_over for agent in self._agents)

    def _tick_within(self, limit_s: float) -> None:
        """Go on until the attempt is over, agents have had their time, or Ctrl-C came twice."""
        deadline_s = running_s() + limit_s
        while not (self._is_over or self._is_late(deadline_s) or self.ends_at_once):
            self._tick()

    def _is_late(self, deadline_s: float) -> bool:
        """Whether the agents' time is over; it is extended while workers may stop or files come."""
        now_s = running_s()
        stop_by_s = max(deadline_s, self._workers_deadline_s)
        files_come = now_s <= self._last_file_s + AGENTS_PAUSE_BETWEEN_FILES_S
        return now_s > stop_by_s + (AGENTS_SEND_FILES_S if files_come else 0.0)

    def _tick(self) -> None:
        """Read new messages immediately; check everything else once per tick, however many come.

        Each of many agents sends a heartbeat every second, and files may be on a file server.
        """
        ready = wait_for_news(
            [agent.channel for agent in self._agents], max(self._looks_at_s - running_s(), 0.0)
        )
        is_due = running_s() >= self._looks_at_s
        heard = [agent for agent in self._agents if is_due or agent.channel in ready]
        for agent in heard:
            self._hear(agent)
        if self._meeting is not None:
            self._look_at_connections(self._meeting)
        if is_due:
            self._looks_at_s = running_s() + MAIN_LOOP_TICK_S
            self._look()
        for agent in heard:
            if lost := agent.loss():
                self._note_end(lost)
        if not self._has_released_agents and all(
            agent.is_done or agent.is_over for agent in self._agents
        ):
            self._has_released_agents = True
            self._send_all(Released())

    def _look(self) -> None:
        """Check what no message announces: the job's time, output, requests and inspections."""
        if not self._has_announced_end and self._is_nearly_over():
            self._has_announced_end = True
            self._send_all(Notice())
        self._print_notes()
        self._print_output()
        if running_s() >= self._looks_for_recovery_at_s:
            self._looks_for_recovery_at_s = running_s() + RECOVERY_LOOKED_FOR_EVERY_S
            self._report_recovery()
            if console.shows_status() and run_files.START.path(self._run_dir).exists():
                console.end_status()
        for request in self._requests.new():
            self._inspect().begin(request)
        if self._inspection is not None:
            self._inspection.tick(is_ending=self._is_ending)
            if self._inspection.hang is not None:
                self._note_end(self._inspection.hang, tells=False)

    def _report_recovery(self) -> None:
        """Print how long the recovery took, once, when the attempt is back at work."""
        if self._fault_unix_s is None:
            return
        line = recovery.report(
            self._run_dir,
            self._spec.attempt_number,
            self._fault_unix_s,
            has_output=bool(self._follower.tail),
            clock_offset_s=-self._agents[0].channel.clock_offset_s,
        )
        if line is not None:
            self._fault_unix_s = None
            self._print_line(line)

    def _inspect(self) -> RunInspection:
        if self._inspection is None:
            names = [agent.assignment.name for agent in self._agents]
            self._inspection = RunInspection(
                self._spec, names, self._requests, self._send_all, self._print_line
            )
        return self._inspection

    def _note_end(self, end: End, *, tells: bool = True) -> None:
        """Note an end; the first failure makes all agents end, whichever side has noticed it.

        `tells`: whether agents are told of it now. They are not told of a hang, but stopped later.
        """
        if end in self._ends:
            return
        self._ends.append(end)
        if end.is_failure:
            self._fail(end, tells=tells)

    def _fail(self, end: End, *, tells: bool = True) -> None:
        """Have all agents end because of this failure, if it is the first."""
        if self._first is None:
            self._first = end
            if tells:
                self._send_all(Lost(end.line))

    def _hear(self, agent: AgentConnection) -> None:
        """Take an agent's messages; after an invalid message, take no more."""
        try:
            for message in agent.channel.receive():
                if isinstance(message, OddMessage):
                    raise message
                check_sender(message, agent.assignment)
                self._take(agent, message)
        except OddMessage as error:
            odd = agent.end_of(Kind.NODE_LOST)
            text = f"{odd.node_label} sent an invalid message: {error}"
            self._note_end(replace(odd, message=text))
            agent.channel.close()  # this ends the agent

    def _take(self, agent: AgentConnection, message: FromAgent) -> None:
        index = agent.assignment.index
        match message:
            case Beat():
                self._take_beat(agent, message)
            case Listening() | Accepted() | Connected() | Unreached() | Broken():
                if self._meeting is None:
                    raise OddMessage("a connection to node 0, although nodes are not connecting")
                self._meeting.take(index, message, running_s())
                if isinstance(message, Listening):
                    self._have_others_connect(message.at.port)
            case ChosenPort(port):
                self._send_all(Start(port))
                if self._spec.attempt:
                    number = self._spec.attempt_number
                    self._fault_unix_s = recovery.recorded_fault_unix_s(self._run_dir, number)
            case File():
                self._last_file_s = running_s()
                agent.files.take(message, None if agent.here is None else agent.here.host)
            case NoProgress() | WaitedInVain() | Inspected() | InspectedAll():
                self._inspect().take(index, message)
            case NodeReady():
                self._note_agent(agent, message)
            case Note(text):
                self._notes.setdefault(text, []).append(agent.assignment.name)
            case Stopping():
                self._take_stopping(message)
            case Failed(end) | WorkerEnded(end):
                # under the name that the node has here
                self._note_end(replace(end, node=agent.assignment.name))
            case Done():
                agent.is_done = True
            case Ended(code):
                agent.take_end(message)
                is_early = code != 0 and not agent.is_done
                if is_early and not self._is_ending and not self._signals:
                    self._fail(self._early_end(agent))

    def _take_beat(self, agent: AgentConnection, beat: Beat) -> None:
        if line := agent.stall_line(beat):
            self._print_line(line)
        if self._inspection is not None:
            self._inspection.note_wait(agent.assignment.index, beat.waits_for)
        if beat.stands_s:  # the files of this agent may be late
            self._last_file_s = running_s()

    def _have_others_connect(self, port: int) -> None:
        """Have the other nodes connect to this port of node 0."""
        for other in self._agents[1:]:
            other.channel.send(Connect(other.assignment.coordinator_address, port))

    def _take_stopping(self, message: Stopping) -> None:
        if not self._workers_deadline_s and not self._spec.quiet:
            again = "; press Ctrl-C again to end at once" if signal.SIGINT in self._signals else ""
            how = "stopping after this step, with a checkpoint"
            if message.has_asked_all:
                how = f"stopping: workers got SIGTERM and have {message.within_s:g} s to finish"
            self._print_line(f"{how}{again}")
        self._workers_deadline_s = running_s() + message.within_s + AGENTS_END_AFTER_STOP_S

    def _early_end(self, agent: AgentConnection) -> End:
        """Why a node's part has ended early, although no end on that node is a failure.

        Some of its ranks may have stopped cleanly while others were done.
        """
        own = [end for end in self._ends if end.node == agent.assignment.name]
        return cause_of(own) or agent.end_of(Kind.FAILED, f"{agent.label} ended early")

    def _look_at_connections(self, meeting: Meeting) -> None:
        """Check the connections to node 0: first for missing ones, after the start for breaks."""
        if meeting.has_begun:
            self._look_for_lost_nodes(meeting)
        else:
            self._meet(meeting)

    def _meet(self, meeting: Meeting) -> None:
        """Have workers start when all nodes are connected; fail if they are not in time."""
        node_0 = self._agents[0]
        for connection in meeting.newly_confirmed():
            node_0.channel.send(KeepConnection(connection))
        if meeting.node_0_endpoint is not None and not meeting.missing:
            meeting.has_begun = True
            node_0.channel.send(ChoosePort())
        if self._is_ending:
            return
        if line := meeting.waiting(running_s()):
            about = {"text": line, "since_unix_s": time.time()}
            write_json(run_files.AWAITED_NODES.path(self._run_dir), about)
            self._print_line(line)
        if why := meeting.failure(running_s()):
            self._note_end(self._agents[meeting.cut_off_node].end_of(Kind.NODE_LOST, why))

    def _look_for_lost_nodes(self, meeting: Meeting) -> None:
        """Fail if a node has lost its connection to node 0, although its agent may live."""
        loss = meeting.loss(running_s())
        if loss is None or self._is_ending or self._has_released_agents:
            return
        lost = self._agents[loss.index]
        since_unix_s = time.time() - loss.for_s
        if loss.how == "closed":
            self._note_end(lost.end_of(Kind.NODE_LOST, time_unix_s=since_unix_s))
        else:
            silent_s = AGENT_LOST_WHEN_SILENT_S
            self._note_end(lost.end_of_silence(silent_s, since_unix_s - silent_s))

    def _note_agent(self, agent: AgentConnection, here: NodeReady) -> None:
        agent.here = here
        ranks = dict.fromkeys(agent.assignment.ranks, agent.assignment.name)
        self._follower.nodes = {**self._follower.nodes, **ranks}
        all_here = {
            other.assignment.name: other.here for other in self._agents if other.here is not None
        }
        if len(all_here) < len(self._agents) or self._spec.quiet:
            return
        nodes = counted(len(self._agents), "node")
        console.update_status(f"workers are importing and loading on {nodes}; no output yet")
        if not here.address.startswith("127."):
            addresses = (
                f"{node} {where.address} ({where.interface})" for node, where in all_here.items()
            )
            self._print_line(f"network: {', '.join(addresses)}")
        self._print_line(f"cores: {_cores_of(all_here)}")

    def _send_all(self, message: Message) -> None:
        for agent in self._agents:
            agent.channel.send(message)

    def _stop_all(self, code: int, why: str, *, at_once: bool = False) -> None:
        self._send_all(Stop(code, f"told to stop ({why})", why, at_once))

    def _print_notes(self) -> None:
        """Print the notes that have come, each once for all nodes that have sent it by now."""
        for text, nodes in self._notes.items() if not self._spec.quiet else ():
            print(on_one_line(f"note: {listed(nodes)}: {text}"), file=sys.stderr, flush=True)
        self._notes = {}

    def _print_line(self, line: str) -> None:
        try:
            print(line, flush=True)
        except BrokenPipeError:
            self._signals.append(signal.SIGPIPE)

    def _print_output(self, *, last: bool = False) -> None:
        try:
            self._follower.poll(last=last)
        except BrokenPipeError:  # nobody reads its output any more, as in `... | head`
            self._signals.append(signal.SIGPIPE)

    @property
    def ends_at_once(self) -> bool:
        """Whether the user wants the run to end at once."""
        return self._signals.count(signal.SIGINT) > 1


def _cores_of(all_here: Mapping[str, NodeReady]) -> str:
    """The workers' cores on each node; nodes with the same text are named together."""
    names: dict[str, list[str]] = {}
    for node, here in all_here.items():
        names.setdefault(here.cores, []).append(node)
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{listed(where)}: {words}" for words, where in names.items())
