"""The supervisor of one node: it starts the node's part of a run, and leaves nothing behind.

Its launcher speaks to it through a pipe, or a connection. Whatever ends first, be it a worker,
torchrun, another node, the launcher or this process itself, all processes of the run on this node
end within seconds.

How it works: one loop looks, every 50 ms, at the other agents, the launcher, signals and its own
workers. Whatever ends this node's part raises `Ended` there. The order of what follows matters: the
other agents are told first, then workers get a moment to write down that they lost a peer, then
they are ended, then this node's record is written, and last it waits until the others have written
theirs: a scheduler may kill the slower tasks of a job as soon as the first has failed.

States of an agent, and the fields that hold them:

    joining     `_peers` is set, `master_port` is None: it waits for the other agents
    running     `_workload` is set
    stopping    `_stop_request`: the launcher asked; workers were asked to stop at a step's end
                `_stopping`: workers that cannot do that have got SIGTERM
    finished    `_finished`: workers of this node have ended; it waits for those of other nodes
    ended       `Ended` was raised, by any state; `_end` runs once

joining -> running -> finished -> ended is a run without failure. `_hurry` and a second SIGINT cut
every wait short. Signal handlers only note what came; the loop acts on it in `_tick`.
"""

import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from launch.agent.agent_records import (
    oom_kills,
    stopped_cleanly,
    write_exit,
    write_here,
    write_waiting,
)
from launch.agent.inspection.node_inspection import NodeInspection
from launch.agent.log_sync import LogSync, make_room
from launch.agent.membership.client import CoordinatorClient
from launch.agent.membership.coordinator import Coordinator
from launch.agent.processes import process_tree
from launch.agent.processes.process_tree import Victim
from launch.agent.processes.workers import (
    INSPECTION,
    Workload,
    after_prologue,
    environment_of,
    with_tmpdir,
)
from launch.agent.stopping import Ended, Stoppable
from launch.nodes.channel import SILENT_S, Channel
from launch.nodes.this_machine import interface_of
from launch.runs.signals import NOTICE, NOTICE_SIGNALS, STOP_SIGNALS
from launch.spec import Assignment
from muster.errors import STOPPED, MusterError

TICK_S = 0.05
DEAF_S = 5.0  # one that was silent for so long is told nothing more
# Time for workers to find that a peer is gone, and to write down how they ended.
ECHO_S = 1.5
STOP_S = 2.0
# Time for the others to write down how they ended, too.
LEAVE_S = 5.0
DRAIN_S = 5.0


class Agent:
    """One node's part of one run."""

    def __init__(self, assignment: Assignment, launcher: Channel) -> None:
        self._assignment = assignment
        self._launcher = launcher
        self._run_dir = assignment.spec.run_dir
        self._signals: list[int] = []
        self._oom_kills = oom_kills()  # before the workers start
        self._noticed = False
        self._hurry = False
        self._stop_request: Ended | None = None  # by the launcher, to stop
        self._stopping: Ended | None = None  # for which workers that say nothing were sent SIGTERM
        self._finished: Ended | None = None  # this node's workers have ended, and well or as told
        self._peers: Coordinator | CoordinatorClient | None = None
        self._workload: Workload | None = None
        shared = (self._run_dir / assignment.proof).exists()
        self._log_sync = None if shared else LogSync(self._run_dir, assignment.index)

    def run(self) -> int:
        """Stay until nothing of the run is left on this node; the exit code of this process."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)
        for number in NOTICE_SIGNALS:  # that the time is up; torchrun ignores them, see `spawn`
            signal.signal(number, self._note_notice)
        process_tree.adopt_orphans()
        # torchrun never removes its temporary folders, and a worker that is killed cannot.
        with tempfile.TemporaryDirectory(prefix="muster-", ignore_cleanup_errors=True) as scratch:
            return self._live(scratch)

    def _live(self, scratch: str) -> int:
        self._scratch = scratch
        self._workers = Stoppable(scratch, self._assignment.spec.stop_grace_s, self._say)
        assignment = self._assignment
        self._inspection = NodeInspection(
            Path(scratch, INSPECTION),
            assignment.index,
            assignment.name,
            lambda message: self._say(inspected=message),
            assignment.spec.hang_after_s,
        )
        try:
            if self._log_sync is not None:
                make_room(assignment)
            self._take_part()
        except Ended as ended:
            return self._end(ended)
        except MusterError as error:
            return self._end(Ended(error.exit_code, "refused", str(error)))
        finally:
            process_tree.end_descendants(STOP_S, in_a_hurry=lambda: True)
        raise AssertionError("an agent ends by saying why")

    def _take_part(self) -> None:
        assignment = self._assignment
        peers: Coordinator | CoordinatorClient
        if assignment.index == 0:
            peers = self._peers = Coordinator(assignment)
            self._say(listening=peers.port)
        else:
            peers = self._peers = CoordinatorClient(assignment)
        announced: str | None = None
        while peers.master_port is None:
            self._tick()
            if peers.waiting != announced:
                announced = peers.waiting
                self._say(waiting=announced)
                write_waiting(assignment, announced)
        workload = self._workload = self._start(peers, peers.master_port)
        self._inspection.begin(peers)
        while workload.runs:
            self._tick()
            self._look_for_failure(workload)
        self._look_for_failure(workload)
        stopped = stopped_cleanly(assignment, peers.ranks)
        done = self._stopping or Ended(0, "done", "")
        self._finished = ended = Ended(STOPPED, "stopped", stopped) if stopped else done
        self._write_exit(ended)
        peers.done()
        while not peers.settled():
            self._tick()
        raise ended

    def _tick(self) -> None:
        """Hear everyone; raises `Ended` where that ends this node's part."""
        assert self._peers is not None
        time.sleep(TICK_S)
        self._peers.tick()
        self._inspection.tick()
        self._hear(self._launcher)
        if self._noticed and self._workload is not None:
            self._heed_notice()
        if self._signals:
            number = self._signals[0]
            name = signal.Signals(number).name
            self._stop(
                Ended(128 + number, "signal", f"{self._assignment.name} was sent {name}"), name
            )
        if self._peers.trouble is not None and self._stopping is None:
            raise Ended(1, "peer", self._peers.trouble)

    def _hear(self, launcher: Channel) -> None:
        if self._log_sync is not None:
            self._log_sync.send_news(launcher)
        for message in launcher.receive():
            if "inspect" in message:
                self._inspection.hear(message["inspect"])
            self._noticed = self._noticed or "notice" in message
            if "stop" in message:
                code, reason = int(message["stop"]), str(message.get("why", "told to stop"))
                self._hurry = self._hurry or bool(message.get("hurry"))
                self._stop_request = Ended(code, "told", reason, str(message.get("signal", reason)))
        if self._stop_request is not None:
            self._stop(self._stop_request, self._stop_request.why)
        if launcher.ended:
            raise Ended(1, "launcher", f"{self._assignment.name} lost its launcher")
        if launcher.silent_s > SILENT_S:
            silence = f"heard nothing from its launcher for {SILENT_S:.0f} s: is the link down?"
            raise Ended(1, "launcher", f"{self._assignment.name} {silence}")

    def _heed_notice(self) -> None:
        """The time of the job is nearly up: workers that can stop in order do, others later."""
        self._workers.ask(NOTICE)  # none may be ready yet: then again, with the next tick
        if self._workers.is_last_moment(self._assignment.left_s()):
            message = f"{self._assignment.name}: the time of its job is nearly up"
            self._stop(Ended(128 + signal.SIGTERM, "signal", message), NOTICE)

    def _stop(self, ended: Ended, why: str) -> None:
        """Have workers end by themselves, where somebody wants the run to; raises `ended` if late.

        A failure, which has another code than a signal's, leaves time only to those that can stop
        in order.
        """
        if self._finished is not None:
            if self._in_a_hurry() or not self._workers.has_patience:
                raise self._finished
            return
        if not self._in_a_hurry():
            self._workers.ask(why)
            if ended.code > 128 and self._is_busy():
                self._inspection.last_look()
                self._stopping = ended if self._workers.ask_all() else self._stopping
        if self._in_a_hurry() or not self._workers.has_time:
            raise ended

    def _start(self, peers: Coordinator | CoordinatorClient, master_port: int) -> Workload:
        assignment = self._assignment
        interface = interface_of(peers.own_address, assignment.network, assignment.name)
        self._say(here=write_here(assignment, peers.own_address, interface, peers.ranks))
        if self._log_sync is not None:
            self._log_sync.ranks = peers.ranks
        env = environment_of(assignment, interface, peers.own_address, self._scratch)
        env = after_prologue(assignment, env, self._scratch, self._tick)
        return Workload(assignment, peers.ranks, master_port, with_tmpdir(env, self._scratch))

    def _look_for_failure(self, workload: Workload) -> None:
        process_tree.reap_orphans(spared=workload.pids)
        failure = workload.failure()
        if failure and self._stopping is None:  # else that is how SIGTERM ended them
            raise Ended(1, "command", failure)

    def _end(self, ended: Ended) -> int:
        """Let everyone know, wait for what workers have to say of it, and end them all."""
        peers, launcher = self._peers, self._launcher
        if peers is not None and ended is not self._finished and ended.cause != "peer":
            peers.fail(ended.message)
        if ended.cause in ("command", "peer"):
            deadline = time.monotonic() + ECHO_S
            while self._has_workers() and time.monotonic() < deadline and not self._signals:
                time.sleep(TICK_S)
                self._keep_in_touch()
        if self._has_workers() and not self._in_a_hurry():
            self._inspection.last_look()
        victims = process_tree.end_descendants(
            STOP_S, in_a_hurry=self._in_a_hurry, meanwhile=self._end_idle_starter
        )
        record = self._write_exit(ended, victims)
        if peers is not None:
            if ended is not self._finished:
                self._wait_for_others(peers)
            self._inspection.tick()
            peers.close()
        if launcher.silent_s < DEAF_S:
            if self._log_sync is not None:
                self._log_sync.send_rest(launcher)
            launcher.send(ended=record)
            launcher.drain(DRAIN_S)
        return ended.code

    def _write_exit(self, ended: Ended, victims: Sequence[Victim] = ()) -> dict[str, Any]:
        peers = self._peers
        return write_exit(
            self._assignment,
            peers.ranks if peers is not None else (),
            code=ended.code,
            cause=ended.cause,
            message=ended.message,
            noticed_unix_s=ended.time_unix_s,
            clock_offset_s=peers.clock_offset_s if peers is not None else 0.0,
            victims=victims,
            oom_kills=oom_kills() - self._oom_kills,
        )

    def _wait_for_others(self, peers: Coordinator | CoordinatorClient) -> None:
        """Stay, for a while, until they have written down how they ended."""
        peers.done()
        deadline = time.monotonic() + LEAVE_S
        while not peers.settled() and time.monotonic() < deadline and not self._in_a_hurry():
            time.sleep(TICK_S)
            self._keep_in_touch()

    def _is_busy(self) -> bool:
        return self._workload is not None and self._workload.runs

    def _has_workers(self) -> bool:
        return self._is_busy() and self._inspection.sees_workers()

    def _end_idle_starter(self) -> None:
        """Without workers torchrun has nothing to do, but takes seconds to end."""
        self._keep_in_touch()
        if self._workload is not None and not self._has_workers():
            self._workload.kill_starter()

    def _keep_in_touch(self) -> None:
        if self._peers is not None:
            self._peers.tick()
            self._inspection.tick()
        if not self._launcher.ended:
            for message in self._launcher.receive():
                self._hurry = self._hurry or bool(message.get("hurry"))

    def _in_a_hurry(self) -> bool:
        return self._hurry or self._signals.count(signal.SIGINT) > 1

    def _say(self, **message: Any) -> None:
        self._launcher.send(**message)

    def _note_notice(self, number: int, frame: FrameType | None) -> None:
        self._noticed = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)
