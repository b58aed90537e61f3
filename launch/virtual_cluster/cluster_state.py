"""One testbed per machine: one action at a time, and everyone can read who holds it and why."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from launch.virtual_cluster.virtual_nodes import Options
from muster.writing import write_json

STATE = Path("/run/muster-testbed")
RECORD = STATE / "testbed.json"
LOGS = STATE / "log"


@dataclass(frozen=True)
class ClusterState:
    """Who made the testbed, what it is, and whether it was made to the end."""

    checkout: str
    holder: str  # who made it, and when
    options: Options
    cores: tuple[int, ...]
    ready: bool = False


@contextmanager
def locked() -> Iterator[None]:
    """Hold the machine's testbed for as long as one action takes; wait for whoever holds it."""
    descriptor = os.open(STATE.parent, os.O_RDONLY)  # a folder that is there before and after
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read() -> ClusterState | None:
    """The testbed that is written down; None where there is none, or no one can read it."""
    try:
        found = json.loads(RECORD.read_text(encoding="utf-8"))
        options = Options(**found.pop("options"))
        cores = tuple(found.pop("cores"))
        return ClusterState(**found, options=options, cores=cores)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write(cluster: ClusterState) -> None:
    """Write `cluster` down, so that a crash leaves the old or the new, never a half."""
    write_json(RECORD, asdict(cluster))
