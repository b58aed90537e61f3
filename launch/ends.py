"""How workers and nodes end, as values: a starter says it of a worker, an agent of its node.

The leader collects these for a short window, and one rule chooses the cause: see `cause_of`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkerEnd:
    """How the process of one rank ended, as its starter saw it."""

    rank: int
    exit_code: int | None  # None: a signal ended it
    signal: int | None
    time_unix_s: float  # by the clock of its node
