"""An agent's part of an inspection: it asks its workers, and checks whether they make progress.

How progress is detected: every few seconds each worker is examined with all its child processes. A
worker is active if it has begun a collective, read or written anything, touched new memory while
computing, or run through different code. On a busy machine, seeing different code takes several
looks. An endless loop does none of these things. In `init_process_group` nothing counts, since
torch retries the same address for ever. A rank that waits in a collective does none of these things
either, however much it computes meanwhile. A process that the program has started, such as a pool
that prepares data, is active whenever it computes, so an endless loop in it cannot be recognised.
If one rank evaluates, saves, compiles or loads, that is progress for all other ranks that wait for
it.

Threads: the agent's loop calls `hear`, `tick` and `record_final_state`, and owns `_looked_s`,
`_sampled_s`, `_has_given_up` and `_has_ended`. A question to workers may take seconds, so each
question has a thread of its own. The thread puts its result into `_answers`, a queue, and the next
`tick` sends it. At most one thread samples at a time. Only this thread changes `_activity`, except
for the record of questions, which has a lock.
"""

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from launch.agent.inspection import local_workers
from launch.agent.processes.process_state import cpu_demand_s, helpers_of, state_of, tree_of
from launch.deadlines import (
    PROGRESS_READ_EVERY_S,
    WORKER_ANSWERS_LAST_LOOK_S,
    WORKER_ANSWERS_S,
    WORKER_EXAMINES_ITSELF_S,
)
from launch.nodes.channel import Channel, running_s
from launch.nodes.messages import (
    Inspect,
    Inspected,
    InspectedAll,
    Message,
    NoProgress,
    Report,
    WaitedInVain,
)
from launch.spec import Assignment

BUSY = 0.05  # share of a core; a worker that uses less is waiting
HELPERS_BUSY = 0.5  # the same for all its child processes; with less, they only watch or log
FAULTS_PER_S = 10.0  # page faults of newly used memory
PLACES = 5  # different positions of the main thread; a small endless loop has 1 to 4


class NodeInspection:
    """The inspection of one node's workers, which began at `since_s`."""

    def __init__(
        self, folder: Path, assignment: Assignment, leader: Channel, since_s: float
    ) -> None:
        self._folder = folder
        self._ranks = assignment.ranks
        self._leader = leader
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._activity = Activity()
        self._sampled_s = since_s
        self._every_s = assignment.spec.progress_every_s
        self._sampler = threading.Thread()  # the last one started; at first a placeholder
        self._looked_s = 0.0
        self._has_given_up = False
        self._has_ended = False

    def sees_workers(self) -> bool:
        """Whether any worker has not ended yet."""
        return bool(local_workers.pids_of(self._folder, self._ranks))

    def hear(self, request: Inspect) -> None:
        """Begin to answer a request; the answer is sent by a later tick."""
        match request.ask:
            case "stacks":
                with suppress(RuntimeError):  # thread limit reached: no answer
                    threading.Thread(target=self._ask, args=(request.id,), daemon=True).start()
            case "resume":
                for path in self._folder.glob("*.gave_up"):
                    path.unlink(missing_ok=True)
                self._has_given_up = False

    def tick(self) -> None:
        """Send finished answers; check whether a worker waits for an inspection."""
        now = running_s()
        if now - self._looked_s > PROGRESS_READ_EVERY_S:
            self._looked_s = now
            if not self._has_given_up and any(self._folder.glob("*.gave_up")):
                self._has_given_up = True
                self._leader.send(WaitedInVain())
        is_due = now - self._sampled_s > self._every_s
        if is_due and not self._sampler.is_alive():
            self._sampled_s = now
            sampler = threading.Thread(target=self._sample, daemon=True)
            with suppress(RuntimeError):  # thread limit reached: no reason to end a run
                sampler.start()
                self._sampler = sampler
        while not self._answers.empty():
            self._leader.send(self._answers.get())

    def record_final_state(self) -> None:
        """Record once what workers are doing before they are ended; wait for their answers."""
        if not self._has_ended:
            self._has_ended = True
            self._ask("end", WORKER_ANSWERS_LAST_LOOK_S)
            self.tick()

    def _ask(self, question_id: str, patience_s: float = WORKER_ANSWERS_S) -> None:
        with self._activity.ignoring_activity():
            reports = self._ask_workers(patience_s, ask="stacks")
        for report in reports.values():
            report = replace(report, clock_offset_s=self._leader.clock_offset_s)
            self._answers.put(Inspected(question_id, report))
        self._answers.put(InspectedAll(question_id))

    def _sample(self) -> None:
        """Report for how long no worker has made progress."""
        closely = self._activity.still_s > self._every_s  # only if nothing else shows progress
        progress = self._ask_workers(WORKER_EXAMINES_ITSELF_S, ask="progress", closely=closely)
        pids = {rank: pid for rank, report in progress.items() if (pid := report.pid)}
        self._activity.look(pids, progress)
        self._answers.put(NoProgress(self._activity.still_s, self._activity.longest_pause_s))

    def _ask_workers(self, patience_s: float, **request: object) -> dict[int, Report]:
        return local_workers.ask(self._folder, self._ranks, patience_s, **request)


@dataclass
class _Sample:
    """What one worker and its descendants had done since they began, at one moment."""

    at: float
    pids: frozenset[int]
    io_bytes: int
    cpu_s: float
    page_faults: int
    number: int  # how many collectives it has begun
    helpers: dict[int, float]  # `cpu_demand_s` of each process that its program has started
    active_at: float = field(default_factory=running_s)
    places: set[int] = field(default_factory=set)  # its main thread's positions since `active_at`

    @classmethod
    def take(cls, pid: int, number: int, *, is_program: bool) -> "_Sample":
        states = [state for state in map(state_of, tree_of(pid)) if state is not None]
        helpers = helpers_of(pid, is_program=is_program)
        return cls(
            running_s(),
            frozenset(state.pid for state in states),
            sum(state.io_bytes for state in states),
            sum(state.cpu_s for state in states),
            sum(state.page_faults for state in states),
            number,
            {
                state.pid: cpu_demand_s(state.pid) or state.cpu_s
                for state in states
                if state.pid in helpers
            },
        )


class Activity:
    """When each worker of this node last made progress."""

    def __init__(self) -> None:
        self._samples: dict[int, _Sample] = {}
        self._began: float | None = None  # when a worker was first seen, or last ended
        # guards the next two, since each question has its own thread
        self._lock = threading.Lock()
        self._questions = 0  # questions that workers are answering now
        self._is_disturbed = False  # whether workers have answered questions since the last look
        self.longest_pause_s = 0.0  # of all workers together

    @property
    def still_s(self) -> float:
        """Seconds since a worker was last active."""
        if self._began is None:
            return 0.0
        last = max((worker.active_at for worker in self._samples.values()), default=self._began)
        return running_s() - last

    @contextmanager
    def ignoring_activity(self) -> Iterator[None]:
        """A context in which workers answer questions, which does not count as progress.

        To answer, they read their source files. This takes time, and another thread may examine the
        workers meanwhile.
        """
        with self._lock:
            self._questions += 1
            self._is_disturbed = True
        try:
            yield
        finally:
            with self._lock:
                self._questions -= 1

    def look(self, pids: Mapping[int, int], progress: Mapping[int, Report]) -> None:
        """Examine each rank's process; `progress`: each rank's collectives and positions."""
        now = running_s()
        before_s = self.still_s
        with self._lock:  # a question that begins after this also affects the next look
            was_disturbed = self._is_disturbed
            self._is_disturbed = self._questions > 0
        for rank, pid in pids.items():
            report = progress[rank]
            old = self._samples.get(rank)
            # without an answer, no new collective counts as begun
            last_number = old.number if old is not None else -1
            number = last_number if report.begun is None else report.begun
            new = _Sample.take(pid, number, is_program=report.answers)
            if old is not None:
                places = old.places | {*report.places}
                is_no_sign = was_disturbed or self._is_disturbed or report.init_call is not None
                counts = new.number != old.number  # no question changes this number
                if not counts and (is_no_sign or not _is_active(old, new, len(places))):
                    new.active_at = old.active_at
                    new.places = places
            self._samples[rank] = new
            self._began = self._began or now
        for rank in set(self._samples) - set(pids):  # ended, which is also progress
            del self._samples[rank]
            self._began = now
        if self.still_s < before_s:
            self.longest_pause_s = max(self.longest_pause_s, before_s)


def _is_active(old: _Sample, new: _Sample, places: int) -> bool:
    if new.pids != old.pids or new.io_bytes > old.io_bytes:
        return True
    elapsed = max(new.at - old.at, 1e-3)
    more_s = sum(seconds - old.helpers.get(pid, seconds) for pid, seconds in new.helpers.items())
    if more_s / elapsed > HELPERS_BUSY:
        return True
    faults_per_s = (new.page_faults - old.page_faults) / elapsed
    is_busy = (new.cpu_s - old.cpu_s) / elapsed > BUSY
    return is_busy and (faults_per_s > FAULTS_PER_S or places >= PLACES)
