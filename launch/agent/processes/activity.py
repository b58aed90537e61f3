"""Whether the workers of a node get anywhere, as far as the kernel can tell.

How it works: every few seconds each worker, with all it has started, is looked at. It is active if
it has begun a collective, read or written anything, or computed in a way that touches memory anew
or goes through different code: on a busy machine it takes some looks to see it at enough places.
An endless loop does neither; nor does a rank that waits in a
collective, however much it computes meanwhile. A rank that evaluates, saves, compiles or loads is
active for all others that wait for it.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from launch.agent.processes.process_state import state_of, tree_of

BUSY = 0.05  # of a core: with less it waits
FAULTS_PER_S = 10.0  # of memory that is used anew
PLACES = 5  # where the main thread is seen while nothing else shows: a small loop has 1 to 4


@dataclass
class _Seen:
    """One worker, with the processes below it: what all have done since they began."""

    at: float
    pids: frozenset[int]
    io_bytes: int
    cpu_s: float
    page_faults: int
    number: int  # of collectives that it has begun
    active_at: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, pid: int, number: int) -> "_Seen":
        states = [one for one in map(state_of, tree_of(pid)) if one is not None]
        return cls(
            time.monotonic(),
            frozenset(one.pid for one in states),
            sum(one.io_bytes for one in states),
            sum(one.cpu_s for one in states),
            sum(one.page_faults for one in states),
            number,
        )


class Activity:
    """When each worker of this node was last seen to get anywhere."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._began: float | None = None  # when a worker was first seen, or last seen to have ended
        self._places: dict[int, set[int]] = {}  # of each rank, since it was last active
        # around the two that follow: who asks has a thread of its own
        self._lock = threading.Lock()
        self._questions = 0  # that workers are answering now
        self._is_disturbed = False  # since the last look
        self.longest_pause_s = 0.0  # of all workers at once

    @property
    def still_s(self) -> float:
        """For how long all of them have not."""
        if self._began is None:
            return 0.0
        last = max((one.active_at for one in self._seen.values()), default=self._began)
        return time.monotonic() - last

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """Inside it workers are asked where they are, and read their source for it: no progress.

        It lasts, and a look may come in its middle, from another thread.
        """
        with self._lock:
            self._questions += 1
            self._is_disturbed = True
        try:
            yield
        finally:
            with self._lock:
                self._questions -= 1

    def look(self, pids: Mapping[int, int], progress: Mapping[int, Mapping[str, Any]]) -> None:
        """Look at each rank's process; `progress`: its collectives, and places it was seen at."""
        now, before_s = time.monotonic(), self.still_s
        with self._lock:  # what begins from here on counts for the next look, too
            was_disturbed, self._is_disturbed = self._is_disturbed, self._questions > 0
        for rank, pid in pids.items():
            begun = progress.get(rank, {})
            old = self._seen.get(rank)
            known = old.number if old is not None else -1  # one that does not answer begins nothing
            new = _Seen.of(pid, begun.get("begun", known))
            if old is not None:
                places = self._places.setdefault(rank, set())
                places.update(begun.get("places", ()))
                is_disturbed = was_disturbed or self._is_disturbed
                counts = new.number != old.number  # which no question brings about
                counts = counts or (not is_disturbed and _is_active(old, new, len(places)))
                new.active_at = now if counts else old.active_at
                places.clear() if counts else None
            self._seen[rank] = new
            self._began = self._began or now
        for rank in set(self._seen) - set(pids):  # ended: that is news, too
            del self._seen[rank]
            self._began = now
        if self.still_s < before_s:
            self.longest_pause_s = max(self.longest_pause_s, before_s)


def _is_active(old: _Seen, new: _Seen, places: int) -> bool:
    if new.pids != old.pids or new.io_bytes > old.io_bytes:
        return True
    elapsed = max(new.at - old.at, 1e-3)
    faults_per_s = (new.page_faults - old.page_faults) / elapsed
    is_busy = (new.cpu_s - old.cpu_s) / elapsed > BUSY
    return is_busy and (faults_per_s > FAULTS_PER_S or places >= PLACES)
