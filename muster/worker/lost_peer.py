"""What a worker says that failed because another was gone: a consequence, not a cause."""

from __future__ import annotations

import re
import sys
from types import TracebackType

# The words of gloo, nccl and the store when the other end is gone.
WORDS = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "timed out waiting",
    "application timeout caused pair closure",
    "failed to recv",
    "socket timeout",
    "remote process has terminated",
    "nccl communicator was aborted",
)

# Before what such a worker prints, where a launcher tells of the cause: it stays in the worker's
# log, and is not shown as it is printed.
CONSEQUENCE = "(a consequence) error: "

# What gloo, nccl and the store say when another rank has not come to a collective.
TIMED_OUT = re.compile("timed out|timeout", re.IGNORECASE)
# The name under which every worker has loaded inspection.py; see worker_main.py.
INSPECTION = "_muster.inspection"


def report_timeout(message: str, trace: TracebackType | None) -> None:
    """Let the agents look at all ranks, before this one ends since others did not come."""
    inspector = getattr(sys.modules.get(INSPECTION), "inspector", None)
    if inspector is not None and TIMED_OUT.search(message):
        inspector.give_up(message, trace)


def is_consequence(message: str) -> bool:
    """Whether the text of an error of torch.distributed says that another rank is gone."""
    text = message.lower()
    return any(words in text for words in WORDS)


def text_of(error: BaseException) -> str:
    """What an error says; one of a program's own may fail where it is asked."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (whatever its own code does)
        return "<its text could not be read>"
