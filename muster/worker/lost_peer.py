"""Recognise errors of a worker that failed because another was gone: a consequence, no cause."""

from __future__ import annotations

import re
import sys
from types import TracebackType

# What gloo, nccl and the store report when the other end is gone.
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

# A prefix of such a worker's output, if a launcher reports the cause: the output stays in the
# worker's log and is not printed.
CONSEQUENCE = "(a consequence) error: "

# What gloo, nccl and the store report when another rank has not joined a collective.
TIMED_OUT = re.compile("timed out|timeout", re.IGNORECASE)
# The name under which every worker has loaded inspection.py; see worker_main.py.
INSPECTION = "_muster.inspection"


def report_timeout(message: str, trace: TracebackType | None) -> None:
    """Let the agents look at all ranks before this one ends because others did not come."""
    inspector = getattr(sys.modules.get(INSPECTION), "inspector", None)
    if inspector is not None and TIMED_OUT.search(message):
        inspector.give_up(message, trace)


def is_consequence(message: str) -> bool:
    """Whether the text of an error of torch.distributed says that another rank is gone."""
    text = message.lower()
    return any(words in text for words in WORDS)


def text_of(error: BaseException) -> str:
    """The text of an error; that of a user's class may fail when asked for it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (the user's own code)
        return "<its text could not be read>"
