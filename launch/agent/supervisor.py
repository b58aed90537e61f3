"""The supervisor of one node: it starts the node's part of a run, and leaves nothing behind.

Its launcher speaks to it through a pipe, or a connection. Whatever ends first, be it a worker,
torchrun, another node, the launcher or this process itself, all processes of the run here end.

How it works: one loop looks, every 50 ms, at the other agents, the launcher, signals and its own
workers. Whatever ends this node's part raises `Ended` there. The order of what follows matters: the
launcher, which has the other nodes end, is told first, then workers get a moment to write down that
they lost a peer, then they are ended, then this node's record is written and sent. Last it waits
for the launcher to let go: other agents would take an end for the cause of what ended it.

States of an agent, and the fields that hold them:

    joining     `_peers` is set, its `master_port` is None: it waits for the other agents
    running     `_workload` is set
    stopping    `_stop_request`: somebody asked; workers were asked to stop at a step's end
                `_stopping`: workers that cannot do that have got SIGTERM
    finished    `_finished`: workers of this node have ended; it waits for those of other nodes
    ended       `Ended` was raised, by any state; `_end` runs once

joining -> running -> finished -> ended is a run without failure. `_hurry` and a second SIGINT cut
every wait short. Signal handlers only note what came; the loop acts on it in `_tick`.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from launch.agent.agent_records import Ended, oom_kills, stopped_cleanly, write_exit, write_here
from launch.agent.inspection.node_inspection import NodeInspection
from launch.agent.log_sync import LogSync, make_room
from launch.agent.membership.coordinator import Peers
from launch.agent.processes import process_tree
from launch.agent.processes.process_tree import Victim
from launch.agent.processes.workers import (
    INSPECTION,
    Workload,
    after_prologue,
    described,
    environment_of,
    refuse_absent_interface,
    start_workload,
)
from launch.agent.stopping import STOPPABLE, Stoppable
from launch.nodes import message_forms
from launch.nodes.channel import SILENT_S, TICK_S, Channel, Heartbeat
from launch.nodes.message_forms import ODD, OddMessage
from launch.nodes.running_time import running_s
from launch.nodes.this_machine import interface_of
from launch.spec import Assignment
from launch.starters.base import WarmInterpreter
from muster.errors import STOPPED, MusterError, at_limit, explained, is_full
from muster.orderly_stop import NOTICE, NOTICE_SIGNALS, STOP_SIGNALS, signal_name
from muster.scratch import scratch_folder

PATH_BYTES = 60  # below it are workers' sockets, whose path may have 103 bytes in all
DEAF_S = 5.0  # a channel that was silent for so long gets no more messages
# Time for workers to find that a peer is gone, and to record how they ended.
ECHO_S, STOP_S = 1.5, 2.0
# Time for the other agents to record how they ended.
LEAVE_S, DRAIN_S = 5.0, 5.0


def main() -> int:
    """Serve a launcher through stdin and stdout."""
    # Accidental output must not get between the messages.
    launcher = Channel(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    return serve(launcher, lambda message: Assignment.from_json(message["assignment"]))


def serve(launcher: Channel, read: Callable[[Mapping[str, Any]], Assignment]) -> int:
    """Wait for the assignment, the launcher's first message, and carry it out."""
    Heartbeat().add(launcher)
    message = launcher.first("assignment", "stop") or {"stop": 1}
    message_forms.check(message, message_forms.FROM_LEADER)
    if "stop" in message:  # before there was anything to do
        return int(message["stop"])
    try:
        assignment = read(message)
    except (KeyError, TypeError, ValueError) as error:
        raise OddMessage(
            f"the assignment of this agent has another form than ours: {error!r}"
        ) from None
    os.chdir(assignment.cwd)
    return Agent(assignment, launcher).run()


class Agent:
    """One node's part of one run."""

    def __init__(self, assignment: Assignment, launcher: Channel) -> None:
        self._assignment, self._launcher = assignment, launcher
        # by a clock that stops with a job: Slurm gives it the time later in which it is suspended
        left_s = assignment.left_s()
        self._ends_s = None if left_s is None else running_s() + left_s
        self._signals: list[int] = []
        self._notices: list[int] = []  # announcements of the time limit
        self._oom_kills, self._hurry = oom_kills(), False  # counted before the workers start
        self._stop_request: Ended | None = None  # by the launcher, a signal or the time
        self._stopping: Ended | None = None  # workers without a stop file have got SIGTERM
        self._finished: Ended | None = None  # this node's workers have ended, well or as requested
        self._lost: str | None = None  # what has failed elsewhere
        self._may_leave = False
        self._peers: Peers | None = None
        self._workload: Workload | None = None
        self._warm = WarmInterpreter()
        shared = (assignment.spec.run_dir / assignment.proof).exists()
        self._log_sync = None if shared else LogSync(assignment)

    def run(self) -> int:
        """Run until nothing of the run is left on this node; return this process's exit code."""
        for number in STOP_SIGNALS:
            signal.signal(number, lambda number, _: self._signals.append(number))
        for number in NOTICE_SIGNALS:  # torchrun ignores them, see `spawn`
            signal.signal(number, lambda number, _: self._notices.append(number))
        process_tree.adopt_orphans()
        # torchrun never removes its temporary folders, and a worker that is killed cannot
        is_long = len(tempfile.gettempdir()) > PATH_BYTES and os.access("/tmp", os.W_OK)
        with scratch_folder(within="/tmp" if is_long else None) as scratch:
            self._scratch = str(scratch)
            assignment = self._assignment
            (scratch / STOPPABLE).mkdir()
            self._inspection = NodeInspection(scratch / INSPECTION, assignment, self._launcher)
            try:
                return self._end(self._take_part())
            finally:
                process_tree.end_descendants(STOP_S, in_a_hurry=lambda: True)

    @cached_property
    def _workers(self) -> Stoppable:
        grace_s = self._assignment.spec.stop_grace_s
        return Stoppable(Path(self._scratch, STOPPABLE), grace_s, self._say)

    def _take_part(self) -> Ended:
        try:
            if self._log_sync is not None:
                make_room(self._assignment)
            return self._run_workers()
        except Ended as ended:
            return ended
        except MusterError as error:
            return Ended(error.exit_code, "refused", str(error))
        except (OSError, RuntimeError) as error:
            if not is_full(error) and not at_limit(error):
                raise
            return Ended(MusterError.exit_code, "refused", explained(error))

    def _run_workers(self) -> Ended:
        assignment = self._assignment
        peers = self._peers = Peers(assignment, self._say)
        while peers.master_port is None:
            self._tick()
        workload = self._workload = self._start(peers, peers.master_port)
        self._inspection.has_begun = True
        while workload.runs:
            self._tick()
            self._look_for_failure(workload)
        self._look_for_failure(workload)
        ended = self._stopping or Ended(0, "done", "")
        if stopped := stopped_cleanly(assignment):
            ended = Ended(STOPPED, "stopped", stopped)
        self._finished = ended
        self._write_exit(ended)
        self._say(done=True)
        while not self._has_leave():
            self._tick()
        return ended

    def _tick(self) -> None:
        """Check all sources of events; raises `Ended` if one ends this node's part."""
        assert self._peers is not None
        time.sleep(TICK_S)
        self._peers.tick()
        self._inspection.tick()
        if self._log_sync is not None:
            self._log_sync.send_news(self._launcher)
        self._hear()
        name, launcher = self._assignment.name, self._launcher
        if self._signals:
            number = self._signals[0]
            why = signal_name(number)
            self._ask_to_stop(Ended(128 + number, "signal", f"{name} was sent {why}", why))
        if self._notices and self._workload is not None:
            self._heed_notice()
        if self._stop_request is not None:
            self._stop(self._stop_request)
        if launcher.ended:
            raise Ended(1, "launcher", f"{name} lost its launcher")
        if launcher.silent_s > SILENT_S:
            silence = f"heard nothing from its launcher for {SILENT_S:.0f} s: is the link down?"
            raise Ended(1, "launcher", f"{name} {silence}")
        trouble = self._lost or (self._peers.trouble if self._finished is None else None)
        if trouble is not None and self._stopping is None:
            raise Ended(1, "peer", trouble)

    def _hear(self) -> None:
        """Note what the launcher says."""
        for message in self._launcher.receive():
            try:
                message_forms.check(message, message_forms.FROM_LEADER)
            except OddMessage as error:
                self._lost = self._lost or f"the launcher of {self._assignment.name} {ODD}: {error}"
                continue
            if "inspect" in message:
                self._inspection.hear(message["inspect"])
            if "notice" in message:
                self._notices.append(0)
            if "stop" in message:
                code = message["stop"]
                reason = message.get("why", "told to stop")
                self._hurry = self._hurry or bool(message.get("hurry"))
                self._ask_to_stop(Ended(code, "told", reason, message.get("signal", reason)))
            self._lost = self._lost or message.get("lost")
            self._may_leave = self._may_leave or "go" in message

    def _ask_to_stop(self, ended: Ended) -> None:
        self._stop_request = self._stop_request or ended

    def _heed_notice(self) -> None:
        """The job's time is nearly over: ask workers that can stop cleanly; others later."""
        self._workers.ask(NOTICE)  # if none is ready yet, the next tick asks again
        left_s = None if self._ends_s is None else self._ends_s - running_s()
        if self._workers.is_last_moment(left_s):
            message = f"{self._assignment.name}: the time of its job is nearly up"
            self._ask_to_stop(Ended(128 + signal.SIGTERM, "signal", message, NOTICE))

    def _stop(self, ended: Ended) -> None:
        """Let workers end by themselves on a request to end the run; raises `ended` if late.

        A failure, whose code is not that of a signal, gives time only to workers that can stop
        cleanly.
        """
        if self._finished is not None:
            return
        if not self._in_a_hurry():
            self._workers.ask(ended.why)
            if ended.code > 128 and self._is_busy():
                self._inspection.last_look()
                self._stopping = ended if self._workers.ask_all() else self._stopping
        if self._in_a_hurry() or not self._workers.has_time:
            raise ended

    def _start(self, peers: Peers, master_port: int) -> Workload:
        assignment = self._assignment
        interface = interface_of(peers.own_address, assignment.network, assignment.name)
        self._say(here=write_here(assignment, peers.own_address, interface))
        env = environment_of(assignment, interface, peers.own_address, self._scratch)
        env = after_prologue(assignment, env, self._scratch, self._tick)
        refuse_absent_interface(assignment, env)
        return start_workload(assignment, master_port, env, self._warm)

    def _look_for_failure(self, workload: Workload) -> None:
        process_tree.reap_orphans(spared=workload.pids)
        failure = workload.failure()
        if failure and self._stopping is None:  # else SIGTERM ended them, which is no failure
            raise Ended(1, "command", described(failure, self._assignment.name))

    def _end(self, ended: Ended) -> int:
        """Inform everyone, wait for the workers' records, and end them all."""
        launcher, index = self._launcher, self._assignment.index
        if ended is not self._finished:
            lost = self._peers.lost if self._peers is not None else None
            message = ended.message[: message_forms.FAILURE_CHARACTERS]
            self._say(failed=message, lost=index if ended.cause == "signal" else lost)
        if ended.cause in ("command", "peer"):
            deadline = running_s() + ECHO_S
            while self._has_workers() and running_s() < deadline and not self._signals:
                time.sleep(TICK_S)
                self._keep_in_touch()
        if self._has_workers() and not self._in_a_hurry():
            self._inspection.last_look()
        victims = process_tree.end_descendants(
            STOP_S,
            in_a_hurry=self._in_a_hurry,
            meanwhile=self._end_idle_starter,
            staying=self._warm.pids,
        )
        self._warm.end()
        record = self._write_exit(ended, victims)
        if launcher.silent_s < DEAF_S:
            self._inspection.tick()
            if self._log_sync is not None:
                self._log_sync.send_rest(launcher)
            launcher.send(ended=record)
            launcher.drain(DRAIN_S)
        deadline = running_s() + LEAVE_S
        while not self._has_leave() and not launcher.ended and running_s() < deadline:
            time.sleep(TICK_S)
            self._keep_in_touch()
        if self._peers is not None:
            self._peers.close()
        return ended.code

    def _write_exit(self, ended: Ended, victims: Sequence[Victim] = ()) -> dict[str, Any]:
        offset_s, killed = self._launcher.clock_offset_s, oom_kills() - self._oom_kills
        return write_exit(self._assignment, ended, offset_s, victims, killed)

    def _has_leave(self) -> bool:
        """Whether nobody needs this agent any more."""
        return self._may_leave or self._assignment.count == 1 or self._in_a_hurry()

    def _is_busy(self) -> bool:
        return self._workload is not None and self._workload.runs

    def _has_workers(self) -> bool:
        return self._is_busy() and self._inspection.sees_workers()

    def _end_idle_starter(self) -> None:
        """End torchrun if it has no workers left, since its own end takes seconds."""
        self._keep_in_touch()
        if self._workload is not None and not self._has_workers():
            self._workload.kill_starter()

    def _keep_in_touch(self) -> None:
        self._inspection.tick()
        self._hear()

    def _in_a_hurry(self) -> bool:
        return self._hurry or self._signals.count(signal.SIGINT) > 1

    def _say(self, **message: Any) -> None:
        self._launcher.send(**message)
