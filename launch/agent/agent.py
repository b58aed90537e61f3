"""The agent of one node: it carries out its part of one attempt after another.

It lives as long as the run. Its leader communicates with it through a pipe or a connection. Between
two attempts nothing of the run is left here but this process and, with `--workers preload`, the
process that forks the workers. It exits when its leader closes the channel or falls silent, or when
it gets a signal.

How its part of an attempt works, in the order of `NodeAttempt.run`:

    meet       nodes connect to node 0 if that is needed; node 0 chooses a port for torch
    work       the workers start, and run until all of them have ended
    release    the leader is told, and this agent waits until all nodes have finished

One function, `_tick`, checks the leader's messages, signals, the connections to other nodes and the
workers: every 50 ms, and whenever the leader has sent something. Anything that ends the attempt
early, whether a worker, torchrun, another node, the leader or a signal, raises `EndsNow`, with an
`Ending` as its value. Then these steps follow, each with its own limit in launch/deadlines.py:

    report     the leader is told first, so that the other nodes end, too
    record     the workers get a moment to record that they have lost a peer
    end        all processes of the attempt on this node are ended
    hand over  this node's record is written, and sent with the files that the leader lacks
    release    as above, since other nodes may need this agent's connection to node 0, or what
               its workers have left running

After a request to end, such as Ctrl-C, the workers may first end by themselves: `work` continues as
long as they have time. Signal handlers only note which signals came.
"""

import json
import os
import re
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from launch.agent.connections import Connector, Listener, listen_or_connect
from launch.agent.log_sync import LogSync, make_room
from launch.agent.processes import process_tree
from launch.agent.processes.process_tree import TerminatedProcess
from launch.agent.processes.workers import (
    INSPECTION,
    Workload,
    after_prologue,
    ends_of_processes,
    ends_of_starter,
    ends_of_workers,
    environment_of,
    records_of,
    refuse_absent_interface,
    start_workload,
    stopped_cleanly,
    write_end_of,
)
from launch.agent.stopping import STOPPABLE, Stoppable
from launch.deadlines import (
    AGENT_LOST_WHEN_SILENT_S,
    LEADER_LOST_WHEN_SILENT_S,
    LEADER_RELEASES_AGENT_S,
    MAIN_LOOP_TICK_S,
    MEETING_TICK_S,
    WORKERS_END_AFTER_SIGTERM_S,
    WORKERS_RECORD_LOST_PEER_S,
)
from launch.ends import End, Kind, WorkerEnd, cause_of, on_leaders_clock
from launch.nodes.channel import Channel, Heartbeat, running_s, wait_for_news, waiting_for
from launch.nodes.messages import (
    REFUSED,
    Assign,
    ChoosePort,
    ChosenPort,
    Done,
    Ended,
    Failed,
    Inspect,
    Lost,
    NodeReady,
    Note,
    Notice,
    OddMessage,
    Released,
    Start,
    Stop,
    WorkerEnded,
    from_leader,
)
from launch.nodes.node_data import DATA_MARK
from launch.nodes.resources import (
    raise_file_limit,
    share_cores,
    shared_memory,
    too_little_shared,
)
from launch.nodes.scheduler import SchedulerJob, job_class
from launch.nodes.this_machine import free_port, gpu_count, interface_of, is_free, ports_of
from launch.runs.run_record import this_process, write_end
from launch.spec import Assignment
from launch.starters.base import WarmInterpreter
from muster.checkout import CHECKOUT
from muster.errors import STOPPED, MusterError, UsageError, at_limit, explained, is_full
from muster.orderly_stop import NOTICE, NOTICE_SIGNALS, STOP_SIGNALS
from muster.printable import signal_name
from muster.run_files import AGENT, AGENT_END
from muster.writing import full_disk, in_use, scratch_folder, write_json

if TYPE_CHECKING:
    from launch.agent.inspection.node_inspection import NodeInspection

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
# The longest path of a temporary folder, since a socket's path below it may have only 103 bytes.
PATH_BYTES = 60


def main() -> int:
    """Serve a leader through stdin and stdout."""
    # Accidental output must not get between the messages.
    leader = Channel(os.dup(0), os.dup(1), from_leader)
    os.dup2(2, 1)
    return serve(
        leader,
        lambda message: Assignment.from_json(json.loads(message.assignment)),
        job_class(os.environ),
    )


def serve(
    leader: Channel, read: Callable[[Assign], Assignment], job: type[SchedulerJob] | None
) -> int:
    """Act as the agent of this node; `read` takes the assignment from a message.

    `job`: the class of the scheduler's job that this process is in.
    """
    Heartbeat().add(leader)
    return Agent(leader, read, job).run()


class Agent:
    """The agent of one node, from its first assignment to the run's end."""

    def __init__(
        self, leader: Channel, read: Callable[[Assign], Assignment], job: type[SchedulerJob] | None
    ) -> None:
        self._leader = leader
        self._read = read
        self._job = job
        self._signals = Signals()
        self._attempt = -1  # the number of the last attempt
        self._warm = WarmInterpreter()

    def run(self) -> int:
        """Carry out assignments; return the exit code of the last one."""
        message = self._leader.first(Assign, Stop, OddMessage)
        if isinstance(message, OddMessage):
            raise message
        if not isinstance(message, Assign):  # the run ended before this agent had anything to do
            return message.code if isinstance(message, Stop) else 1
        for number in STOP_SIGNALS:
            signal.signal(number, lambda number, _: self._signals.note_stop(number))
        for number in NOTICE_SIGNALS:  # torchrun ignores them, see `spawn`
            signal.signal(number, lambda number, _: self._signals.notices.append(number))
        process_tree.adopt_orphans()
        raise_file_limit()
        try:
            code = 0
            request: Assign | None = message
            while request is not None:
                code = self._carry_out(self._assignment(request))
                request = self._next_assignment()
            return code
        finally:
            self._warm.end()
            process_tree.end_descendants(WORKERS_END_AFTER_SIGTERM_S, at_once=lambda: True)

    def _assignment(self, message: Assign) -> Assignment:
        """The assignment in a message.

        Raises:
            OddMessage: it cannot be read, or was carried out before.
        """
        try:
            assignment = self._read(message)
        except (*REFUSED, KeyError, TypeError, ValueError) as error:
            raise OddMessage(f"this agent's assignment cannot be read: {error!r}") from None
        if assignment.spec.attempt <= self._attempt:
            raise OddMessage("received an assignment for an earlier attempt")
        self._attempt = assignment.spec.attempt
        return assignment

    def _carry_out(self, assignment: Assignment) -> int:
        os.chdir(assignment.cwd)
        # torchrun never removes its temporary folders, and a worker that is killed cannot
        is_long = len(tempfile.gettempdir()) > PATH_BYTES and os.access("/tmp", os.W_OK)
        data = Path(assignment.data, DATA_MARK)  # nobody replaces or removes what is in use
        with scratch_folder(within="/tmp" if is_long else None) as scratch, in_use(data):
            return NodeAttempt(
                assignment, self._leader, self._signals, scratch, self._warm, self._job
            ).run()

    def _next_assignment(self) -> Assign | None:
        """The message with the next assignment; None if there is none.

        Messages that still come for the last attempt, such as a request to stop it, are dropped.

        Raises:
            OddMessage: the leader sent an invalid message, which may have been the assignment.
        """
        leader = self._leader
        while (
            not self._signals.stops
            and not leader.ended
            and leader.silent_s <= LEADER_LOST_WHEN_SILENT_S
        ):
            messages = leader.receive()
            for count, message in enumerate(messages, start=1):
                if isinstance(message, OddMessage):
                    raise message
                if isinstance(message, Assign):
                    leader.put_back(messages[count:])
                    return message
            wait_for_news([leader], MAIN_LOOP_TICK_S)
        return None


Cause: TypeAlias = Literal[
    "done", "stopped", "command", "peer", "signal", "told", "launcher", "refused"
]


@dataclass(frozen=True)
class Ending:
    """How a node's part of an attempt ends, and why; a code above 128 is that of a signal."""

    code: int
    cause: Cause
    message: str
    why: str = ""  # the reason that workers get when they are asked to stop
    ends: tuple[End, ...] = ()  # the ends of this node and its workers that this agent has seen
    time_unix_s: float = field(default_factory=time.time)


class EndsNow(Exception):
    """A node's part of an attempt ends now, whatever still runs."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.message)
        self.ending = ending


@dataclass
class Signals:
    """What the handlers of this process have received."""

    stops: list[int] = field(default_factory=list)
    first_unix_s: float = 0.0  # when the first of `stops` came
    notices: list[int] = field(default_factory=list)  # announcements of the time limit

    def note_stop(self, number: int) -> None:
        """Note a stop signal; its handler calls this, before workers can react to the signal."""
        self.first_unix_s = self.first_unix_s or time.time()
        self.stops.append(number)


class NodeAttempt:
    """One node's part of one attempt; `run` carries it out."""

    def __init__(
        self,
        assignment: Assignment,
        leader: Channel,
        signals: Signals,
        scratch: Path,
        warm: WarmInterpreter,
        job: type[SchedulerJob] | None = None,
    ) -> None:
        self._assignment = assignment
        self._warm = warm
        self._job = job
        self._leader = leader
        self._signals = signals
        self._scratch = scratch
        # this clock stops while a scheduler suspends the job, whose end is postponed by that time
        left_s = assignment.left_s()
        self._job_ends_s = None if left_s is None else running_s() + left_s
        self._oom_kills = oom_kills()  # counted before the workers start
        self._requested: Ending | None = None  # somebody has asked for the end
        self._elsewhere: Ending | None = None  # another node has failed, or the leader's channel
        self._must_end_at_once = False
        self._is_released = False  # no other node needs this agent any more
        self._reported: dict[int, End] = {}  # the ends that the leader was told of, by rank
        self._connections: Listener | Connector | None = None  # if nodes connect
        self._has_to_choose_port = False
        self._master_port: int | None = None  # torch's port, with which all nodes start
        self._workload: Workload | None = None
        shared = (assignment.spec.run_dir / assignment.disk_marker).exists()
        self._log_sync = None if shared else LogSync(assignment)
        (scratch / STOPPABLE).mkdir()
        (scratch / INSPECTION).mkdir()
        self._workers_began_s = 0.0
        self._inspection: NodeInspection | None = None  # made when it is first needed

    def run(self) -> int:
        """Run until nothing of the attempt is left on this node; return its exit code."""
        failure = None
        try:
            try:
                ending = self._run_workers()
                self._wait_for_release(ending)
            except EndsNow as early:
                ending = failure = early.ending
            except MusterError as error:
                ending = failure = self._refusal(error.exit_code, str(error))
            except PermissionError as error:
                if error.filename is None or self._workload is not None:
                    raise
                where = f"{self._assignment.name}: {error.filename}"
                ending = failure = self._refusal(
                    UsageError.exit_code, f"{where}: permission denied"
                )
            except (OSError, RuntimeError) as error:
                if not is_full(error) and not at_limit(error):
                    raise
                ending = failure = self._refusal(MusterError.exit_code, explained(error))
            self._end(ending, is_failure=failure is not None)
            return ending.code
        finally:
            process_tree.end_descendants(
                WORKERS_END_AFTER_SIGTERM_S, at_once=lambda: True, staying=self._warm.pids
            )
            if self._workload is not None:
                self._workload.close()

    @cached_property
    def _stoppable(self) -> Stoppable:
        grace_s = self._assignment.spec.stop_grace_s
        return Stoppable(self._scratch / STOPPABLE, grace_s, self._send)

    def _refusal(self, code: int, message: str) -> Ending:
        end = self._end_of(Kind.REFUSED, code=code % 256, message=message)
        return Ending(code, "refused", message, ends=(end,))

    def _end_of(
        self,
        kind: Kind,
        *,
        message: str = "",
        code: int = 1,
        number: int | None = None,
        time_unix_s: float | None = None,
    ) -> End:
        """An end of this node, as its agent sees it."""
        own_time = time.time() if time_unix_s is None else time_unix_s
        leaders_time = on_leaders_clock(own_time, self._leader.clock_offset_s)
        name = self._assignment.name
        return End(kind, name, leaders_time, code=code, signal=number, message=message)

    def _run_workers(self) -> Ending:
        """Start the workers together with all other nodes', and wait until they have ended.

        Raises:
            EndsNow: something else ends the attempt.
            MusterError: the workers cannot be started.
        """
        assignment = self._assignment
        if self._log_sync is not None:
            make_room(assignment)
        if assignment.nodes_connect:
            self._connections = listen_or_connect(assignment, self._send)
        while self._master_port is None:
            self._tick(MEETING_TICK_S)
        env = self._environment(self._own_address)
        inside = assignment
        if assignment.spec.program.image:
            # this import would delay all other runs if it were at the top of the file
            from launch.agent.processes.container import assignment_inside

            with waiting_for("its --container"):
                inside = assignment_inside(assignment, env, str(self._scratch), self._tick)
        workload = start_workload(inside, self._master_port, env, self._warm)
        self._workload = workload
        self._workers_began_s = running_s()
        while workload.runs:
            self._tick()
            self._look_for_failure(workload)
        self._look_for_failure(workload)
        if stopped := stopped_cleanly(assignment):
            return Ending(STOPPED, "stopped", stopped)
        if self._requested is not None and self._stoppable.has_asked_all:
            return self._requested
        return Ending(0, "done", "")

    def _wait_for_release(self, ending: Ending) -> None:
        """Record how the workers have ended, and wait for the workers of the other nodes.

        Raises:
            EndsNow: something has failed elsewhere.
        """
        self._report(ending.ends)
        self._write_exit(ending)
        self._send(Done())
        while not self._can_leave():
            self._look(MAIN_LOOP_TICK_S)
            self._end_with_others()

    def _tick(self, within_s: float = MAIN_LOOP_TICK_S) -> None:
        """Check everything once; after a request to end, let the workers end by themselves.

        Raises:
            EndsNow: the attempt ends here.
        """
        self._look(within_s)
        if self._signals.stops:
            number = self._signals.stops[0]
            end = self._end_of(Kind.SIGNAL, number=number, time_unix_s=self._signals.first_unix_s)
            self._request(Ending(128 + number, "signal", end.text, signal_name(number), (end,)))
        if self._signals.notices and self._workload is not None:
            self._act_on_notice()
        if self._requested is not None:
            self._ask_workers_to_stop(self._requested)
        self._end_with_others()

    def _look(self, within_s: float) -> None:
        """Wait up to `within_s` for the leader's messages; then check other nodes and workers."""
        wait_for_news([self._leader], within_s)
        self._hear()
        if self._has_to_choose_port:
            self._choose_port()
        for message in [] if self._connections is None else self._connections.tick():
            self._send(message)
        self._look_at_workers()
        if self._log_sync is not None:
            self._log_sync.send_news(self._leader)

    def _end_with_others(self) -> None:
        """End if the leader is lost, or if something has failed elsewhere.

        Raises:
            EndsNow: either is the case.
        """
        lost = ""
        if self._leader.ended:
            lost = "lost its connection to the launcher"
        elif self._leader.silent_s > self._leader_silence_s:
            silence_s = self._leader_silence_s
            lost = (
                f"has had no message from the launcher for {silence_s:.0f} s: is the network link "
                "down?"
            )
        if lost:
            end = self._end_of(Kind.JOB, message=lost)
            raise EndsNow(Ending(1, "launcher", end.text, ends=(end,)))
        if self._elsewhere is not None and not self._stoppable.has_asked_all:
            raise EndsNow(self._elsewhere)

    @property
    def _own_address(self) -> str:
        """This node's address on the network for gradients; known when workers may start."""
        own = self._assignment.address
        if self._connections is not None:
            own = self._connections.own_address
        return own or self._assignment.coordinator_address

    def _choose_port(self) -> None:
        """Choose torch's port, which the leader then sends to all nodes.

        Raises:
            MusterError: no port is free for torch, or --master-port is not.
        """
        self._has_to_choose_port = False
        self._send(ChosenPort(master_port_of(self._assignment)))
        if isinstance(self._connections, Listener):
            self._connections.stop_accepting()  # not earlier: its port must not look free for torch

    def _look_at_workers(self) -> None:
        """Inspect the workers once one has waited in vain, or once a check of progress is due."""
        if self._workload is None:
            return
        if self._inspection is None:
            is_time = running_s() - self._workers_began_s > self._assignment.spec.progress_every_s
            if not is_time and not any((self._scratch / INSPECTION).glob("*.gave_up")):
                return
        self._inspect().tick()

    def _inspect(self) -> "NodeInspection":
        if self._inspection is None:
            # this import would delay the start of workers if it were at the top of the file
            from launch.agent.inspection.node_inspection import NodeInspection

            folder = self._scratch / INSPECTION
            since_s = self._workers_began_s or running_s()
            self._inspection = NodeInspection(folder, self._assignment, self._leader, since_s)
        return self._inspection

    @property
    def _leader_silence_s(self) -> float:
        """How long the leader may be silent; shorter if this node has also lost node 0.

        If nodes do not connect, a leader on another machine is on node 0.
        """
        is_cut_off = (self._connections or self._leader).is_cut_off
        return AGENT_LOST_WHEN_SILENT_S if is_cut_off else LEADER_LOST_WHEN_SILENT_S

    def _hear(self) -> None:
        """Take the leader's messages, up to the assignment of the next attempt."""
        messages = self._leader.receive()
        for index, message in enumerate(messages):
            if self._connections is not None:
                self._connections.hear(message)
            match message:
                case Assign():
                    self._leader.put_back(messages[index:])
                    self._is_released = True
                    return
                case OddMessage():
                    odd = (
                        f"{self._assignment.name}: the launcher sent an invalid message: {message}"
                    )
                    self._note_failure_elsewhere(odd, self._end_of(Kind.NODE_LOST, message=odd))
                case ChoosePort():
                    self._has_to_choose_port = True
                case Start(master_port):
                    self._master_port = master_port
                case Inspect():
                    self._inspect().hear(message)
                case Notice():
                    self._signals.notices.append(0)
                case Stop(code, why, reason, at_once):
                    self._must_end_at_once |= at_once
                    self._request(Ending(code, "told", why, reason or why))
                case Lost(why):
                    self._note_failure_elsewhere(why)
                case Released():
                    self._is_released = True

    def _note_failure_elsewhere(self, why: str, *unreported: End) -> None:
        """Note that something has failed elsewhere; only the first failure counts."""
        self._elsewhere = self._elsewhere or Ending(1, "peer", why, ends=unreported)

    def _request(self, ending: Ending) -> None:
        """Note that somebody asks for the end; only the first request counts."""
        self._requested = self._requested or ending

    def _act_on_notice(self) -> None:
        """Ask workers that can stop cleanly to stop, since the job's time is nearly over.

        Other workers are asked at the last moment.
        """
        self._stoppable.ask(NOTICE)  # if none is ready yet, the next tick asks again
        left_s = None if self._job_ends_s is None else self._job_ends_s - running_s()
        if self._stoppable.is_last_moment(left_s):
            text = f"{self._assignment.name}: its job has nearly reached its time limit"
            end = self._end_of(Kind.SIGNAL, number=signal.SIGTERM, message=text)
            self._request(Ending(end.exit_code, "signal", end.text, NOTICE, (end,)))

    def _ask_workers_to_stop(self, ending: Ending) -> None:
        """After a request to end the run, let workers end by themselves, as long as they have time.

        After a failure, whose code is not that of a signal, only workers that can stop cleanly have
        time.

        Raises:
            EndsNow: they have no time, or none left.
        """
        if self._ends_at_once():
            raise EndsNow(ending)
        self._stoppable.ask(ending.why)
        workload = self._workload
        is_busy = workload is not None and workload.runs and workload.may_have_workers
        if ending.code > 128 and is_busy:
            self._inspect().record_final_state()
            if not self._stoppable.is_asked:
                self._stoppable.ask_all()
        if not self._stoppable.has_time:
            raise EndsNow(ending)

    def _environment(self, address: str) -> dict[str, str]:
        """Prepare the environment of the workers.

        Raises:
            EndsNow: the attempt ends while the prologue runs.
            MusterError: the prologue fails.
        """
        assignment = self._assignment
        interface = interface_of(address, assignment.network, assignment.name)
        scratch = str(self._scratch)
        env = environment_of(assignment, interface, address, scratch, self._job)
        cores = share_cores(
            env,
            assignment.ranks,
            assignment.machine_ranks,
            assignment.spec.bind,
            has_gpus=gpu_count() > 0,
            job_cpus=self._job.cpus_variable if self._job else "",
        )
        write_agent(assignment, address, interface, cores)
        self._send(NodeReady(socket.gethostname(), address, interface, cores))
        note = too_little_shared(shared_memory(), len(assignment.machine_ranks))
        if note and assignment.spec.attempt == 0:
            self._send(Note(note))
        with waiting_for("its --prologue"):
            sourced = after_prologue(assignment, env, scratch, self._tick)
        refuse_absent_interface(assignment, sourced)
        return sourced

    def _look_for_failure(self, workload: Workload) -> None:
        """Check whether a worker has failed.

        Raises:
            EndsNow: a worker has failed.
        """
        process_tree.reap_orphans(excluded=workload.pids)
        failure = workload.failure()
        if failure is None or self._stoppable.has_asked_all:  # our own SIGTERM causes no failure
            return
        offset_s = self._leader.clock_offset_s
        ends = ends_of_workers(self._assignment, workload.ends(), offset_s)
        if failure.starter_end is not None:
            ends += ends_of_starter(self._assignment, failure.starter_end, ends, offset_s)
        first = cause_of(ends)
        message = "" if first is None else first.line
        raise EndsNow(Ending(1, "command", message, ends=tuple(ends)))

    def _end(self, ending: Ending, *, is_failure: bool) -> None:
        """End all processes of the attempt on this node, and hand over what is known about them.

        `is_failure`: the leader is told of each end. Otherwise it has already been told of all
        ends, since the workers have ended by themselves.
        """
        if is_failure:
            self._report(ending.ends)
        ended: Sequence[WorkerEnd] = ()
        if ending.cause in ("command", "peer"):
            self._let_workers_record()
        if ending.cause == "peer" and self._workload is not None:
            ended = self._ended_by_themselves(self._workload)
        if self._has_workers() and not self._ends_at_once():
            self._inspect().record_final_state()
        processes = self._end_processes()
        if is_failure:  # the processes that have ended since then ended because of this
            offset_s = self._leader.clock_offset_s
            self._report(ends_of_workers(self._assignment, ended, offset_s))
            self._report(ends_of_processes(self._assignment, processes))
        full = self._write_exit(ending, processes)
        if full and is_failure:
            self._report([self._end_of(Kind.FULL, message=full)])
        if self._leader.silent_s <= self._leader_silence_s:
            self._hand_over(ending)
        deadline = running_s() + LEADER_RELEASES_AGENT_S
        while not self._can_leave() and not self._leader.ended and running_s() < deadline:
            wait_for_news([self._leader], MAIN_LOOP_TICK_S)
            self._hear()  # this answers nothing: the leader may be at the next attempt
        if self._connections is not None:
            self._connections.close()

    def _let_workers_record(self) -> None:
        """Give workers a moment to record that they have lost a peer."""
        deadline = running_s() + WORKERS_RECORD_LOST_PEER_S
        while self._has_workers() and running_s() < deadline and not self._signals.stops:
            time.sleep(MAIN_LOOP_TICK_S)
            self._keep_in_touch()

    def _ended_by_themselves(self, workload: Workload) -> Sequence[WorkerEnd]:
        """How workers have ended before this agent ends any: one of them may be the first cause.

        Their starter reports an end a moment after it happens.
        """
        deadline = running_s() + WORKERS_RECORD_LOST_PEER_S
        while workload.runs and not self._has_workers() and running_s() < deadline:
            known = {*records_of(self._assignment), *(end.rank for end in workload.ends())}
            if known.issuperset(self._assignment.ranks) or self._signals.stops:
                break
            time.sleep(MAIN_LOOP_TICK_S)
            self._keep_in_touch()
        return workload.ends()

    def _end_processes(self) -> list[TerminatedProcess]:
        self._end_idle_starter()
        return process_tree.end_descendants(
            WORKERS_END_AFTER_SIGTERM_S,
            at_once=self._ends_at_once,
            meanwhile=self._end_idle_starter,
            staying=self._warm.pids,
        )

    def _hand_over(self, ending: Ending) -> None:
        """Send the files that the leader lacks, and the last message of the attempt."""
        self._look_at_workers()
        if self._log_sync is not None:
            self._log_sync.send_rest(self._leader, self._leader_silence_s)
        self._send(Ended(ending.code, leaves=bool(self._signals.stops)))
        self._leader.drain(self._leader_silence_s)

    def _report(self, ends: Iterable[End]) -> None:
        """Tell the leader what has ended."""
        for end in ends:
            if end.rank is None:
                self._send(Failed(end))
            elif self._reported.get(end.rank) is None:
                self._reported[end.rank] = end
                self._send(WorkerEnded(end))

    def _write_exit(self, ending: Ending, processes: Sequence[TerminatedProcess] = ()) -> str:
        """Record the end; return a line if the run folder's disk is full, else ""."""
        offset_s = self._leader.clock_offset_s
        killed = oom_kills() - self._oom_kills
        return write_exit(self._assignment, ending, offset_s, processes, killed)

    def _can_leave(self) -> bool:
        """Whether no other node needs this agent any more in this attempt."""
        return self._is_released or self._assignment.count == 1 or self._ends_at_once()

    def _is_busy(self) -> bool:
        return self._workload is not None and self._workload.runs

    def _has_workers(self) -> bool:
        return self._is_busy() and self._inspect().sees_workers()

    def _end_idle_starter(self) -> None:
        """End torchrun if it has no workers left, since its own end takes seconds."""
        self._keep_in_touch()
        if self._workload is not None and not self._has_workers():
            self._workload.kill_starter()

    def _keep_in_touch(self) -> None:
        self._look_at_workers()
        self._hear()

    def _ends_at_once(self) -> bool:
        """Whether the user wants the run to end at once."""
        return self._must_end_at_once or self._signals.stops.count(signal.SIGINT) > 1

    def _send(self, message: Struct) -> None:
        self._leader.send(message)


def master_port_of(assignment: Assignment) -> int:
    """The port for torch on this node, which is node 0: the requested port, or a free one.

    Raises:
        MusterError: no port is free for torch, or --master-port is not.
    """
    if assignment.master_port is None:
        return free_port(ports=ports_of(assignment.spec.ports))
    if not is_free(assignment.master_port):
        raise MusterError(
            f"--master-port {assignment.master_port} is in use on {assignment.name}\n"
            "tip: choose another port, or leave it out to use a free one"
        )
    return assignment.master_port


def write_agent(assignment: Assignment, address: str, interface: str | None, cores: str) -> None:
    """Record this agent; its process is identified by its pid and its start time."""
    record = {
        "index": assignment.index,
        "node": assignment.name,
        "address": address,
        "interface": interface,
        "ranks": list(assignment.ranks),
        "cores": cores,
        "time_unix_s": time.time(),
        "muster": str(CHECKOUT),
        **this_process(),
    }
    path = AGENT.path(assignment.spec.run_dir, node=assignment.index)
    with waiting_for(str(path)):
        write_json(path, record)


def write_exit(
    assignment: Assignment,
    ending: Ending,
    clock_offset_s: float,
    processes: Sequence[TerminatedProcess],
    oom_kills: int,
) -> str:
    """Record how this node's part ended; return a line if the run folder's disk is full, else "".

    In the record, `ends` are the ends that no worker has recorded itself. `terminated` are the
    workers that were alive until this agent ended them, with their states. `oom_kills` is how many
    processes the kernel has killed for lack of memory. `full` is the returned line.
    """
    path = AGENT_END.path(assignment.spec.run_dir, node=assignment.index)
    with waiting_for(str(path)):
        full = full_disk(path) if ending.cause != "done" else ""
    for rank in assignment.ranks if ending.cause == "done" else ():
        write_end_of(assignment, rank, 0)
    record = {
        "index": assignment.index,
        "node": assignment.name,
        "host": socket.gethostname(),
        "code": ending.code,
        "cause": ending.cause,
        "message": ending.message,
        "ends": [end.to_json() for end in ending.ends if not end.is_recorded],
        "noticed_unix_s": ending.time_unix_s,
        "time_unix_s": time.time(),
        "clock_offset_s": clock_offset_s,  # the leader's clock minus this node's
        "ranks": list(assignment.ranks),
        "oom_kills": oom_kills,
        "full": full,
        "terminated": {each.rank: asdict(each) for each in processes if each.rank is not None},
    }
    with waiting_for(str(path)):
        write_end(path, record)
    return full


def oom_kills(root: Path = CGROUPS, own: Path = OWN_CGROUP) -> int:
    """How many processes of this cgroup the kernel has killed for lack of memory; 0 if unknown.

    A scheduler gives each job a cgroup with the memory that the job requested. Version 2 counts in
    `memory.events`, version 1 in `memory.oom_control`, both on a line `oom_kill N`.
    """
    counted = ""
    for line in _read_text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            counted += _read_text(root / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            counted += _read_text(root / "memory" / path.lstrip("/") / "memory.oom_control")
    match = re.search(r"^oom_kill (\d+)$", counted, re.MULTILINE)
    return int(match[1]) if match else 0


def _read_text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""
