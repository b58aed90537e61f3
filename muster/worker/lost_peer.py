"""Recognise errors that are only a consequence: a worker failed because another had ended."""

from __future__ import annotations

import io
import re
import sys
from contextlib import suppress
from types import TracebackType

# What gloo, nccl and the store report when the other end of a connection has ended.
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
    "remote process exited or there was a network error",
    "ncclremoteerror",
    "connection closed by remote peer",
    "watchdog caught collective operation timeout",
)

# Exceptions of torch.distributed; `RuntimeError` is gloo's.
TORCH_ERRORS = frozenset("RuntimeError DistBackendError DistNetworkError DistStoreError".split())
PEER_FAILED = "PeerFailed"  # the error of `muster.init`, which names the other rank if it can
# What it reports about a rank that has reached the end of its `muster.init` block.
HAS_LEFT = "left muster.init() while others were in a collective"
# The prefix of lines in such a worker's output, if a launcher reports the cause: these lines stay
# in the worker's log and are not printed.
CONSEQUENCE = "(a consequence) "

# What gloo, nccl and the store report when another rank has not joined a collective.
TIMED_OUT = re.compile("timed out|timeout", re.IGNORECASE)
# The name under which every worker has loaded inspection.py; see worker_main.py.
INSPECTION = "_muster.inspection"


def report_lost_peer(message: str, trace: TracebackType | None) -> None:
    """Tell the agents what this rank did, if it ends because another rank is late or gone.

    After a timeout it waits until the agents have looked at all ranks. If gloo's ranks disagree,
    one of them times out and closes its connections, so that the others end before any agent has
    looked.
    """
    inspector = getattr(sys.modules.get(INSPECTION), "inspector", None)
    if inspector is None:
        return
    if TIMED_OUT.search(message):
        inspector.give_up(message, trace)
    if is_consequence(message):
        inspector.leave_answer(trace)


def is_consequence(message: str) -> bool:
    """Whether the text of an error of torch.distributed says that another rank is gone."""
    text = message.lower()
    return any(words in text for words in WORDS)


def is_lost_peer(message: str) -> bool:
    """Whether torch or `muster.init` raised an error, as `Kind: text`, because a rank is gone."""
    kind = message.partition(":")[0]
    return kind == PEER_FAILED or (kind in TORCH_ERRORS and is_consequence(message))


def print_as_consequence(kind: type[BaseException], error: BaseException, trace: object) -> None:
    """Print the error that ends a program as Python does, with our prefix before each line."""
    stream = sys.stderr
    sys.stderr = io.StringIO()
    try:
        sys.excepthook(kind, error, trace)  # type: ignore[arg-type]
        printed = sys.stderr.getvalue()
    finally:
        sys.stderr = stream
    with suppress(AttributeError, OSError, ValueError):  # the program has closed or replaced it
        stream.write("".join(f"{CONSEQUENCE}{line}\n" for line in printed.splitlines()))
        stream.flush()


def text_of(error: BaseException) -> str:
    """The text of an error, or a substitute, since `__str__` of a user's class may fail."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (the user's own code)
        return "<its text could not be read>"
