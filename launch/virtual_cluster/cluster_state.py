"""One testbed per machine: one action at a time; anyone can read who owns it, and its options."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from launch.virtual_cluster.options import Options
from muster.writing import write_json

STATE = Path("/run/muster-testbed")
RECORD = STATE / "testbed.json"
LOGS = STATE / "log"


@dataclass(frozen=True)
class ClusterState:
    """Who made the testbed, its options, and whether it is complete."""

    checkout: str
    holder: str  # who made it, and when
    options: Options
    cores: tuple[int, ...]
    ready: bool = False


@contextmanager
def locked() -> Iterator[None]:
    """Lock the machine's testbed for one action; wait while another process has the lock."""
    descriptor = os.open(STATE.parent, os.O_RDONLY)  # this folder exists before and after a testbed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read() -> ClusterState | None:
    """The recorded testbed; None if there is none, or it cannot be read."""
    try:
        found = json.loads(RECORD.read_text(encoding="utf-8"))
        options = Options(**found.pop("options"))
        cores = tuple(found.pop("cores"))
        return ClusterState(**found, options=options, cores=cores)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write(cluster: ClusterState) -> None:
    """Record `cluster`, so that a crash leaves the old or the new record, never half of one."""
    write_json(RECORD, asdict(cluster))
