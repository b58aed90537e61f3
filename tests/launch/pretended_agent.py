"""An agent that starts nothing: `python -m tests.launch.pretended_agent MODE`, one of `MODES`."""

import errno
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from launch.ends import End, Kind
from launch.nodes.channel import MESSAGE_MARK, Channel
from launch.nodes.messages import Assign, Beat, Ended, Failed, Stop, WorkerEnded, from_leader
from muster.errors import explained

PRINTED_BYTES = 400_000
LISTENS_S = 9.0
SILENT_S = 6.0
DELAY_S = 2.0


def fails(launcher: Channel, assignment: dict[str, Any], message: str = "it ended with 1") -> int:
    """Fail immediately."""
    launcher.send(Failed(End(Kind.REFUSED, "node0", time.time(), message=message)))
    launcher.send(Ended(1))
    return 1


def is_full(launcher: Channel, assignment: dict[str, Any]) -> int:
    """Fail immediately, because the disk is full."""
    no_space = OSError(errno.ENOSPC, "", "agents/node_00000.json")
    return fails(launcher, assignment, explained(no_space))


def is_odd(launcher: Channel, assignment: dict[str, Any]) -> int:
    """Send what no agent sends, and wait for the launcher to end."""
    _send_oddity(launcher)
    while not launcher.ended:
        launcher.receive()
        time.sleep(0.01)
    return 1


def outlives(launcher: Channel, assignment: dict[str, Any]) -> int:
    """Send what no agent sends, and end only on a signal."""
    _send_oddity(launcher)
    while True:
        time.sleep(1)


def late_culprit(launcher: Channel, assignment: dict[str, Any]) -> int:
    """Report immediately on node 0 that its rank lost another.

    On node 1, report only after a while that its rank was killed, which happened earlier.
    """
    now = time.time()
    if assignment["index"] == 0:
        end = End(Kind.LOST_PEER, "node0", now, 0, message="lost another worker")
        launcher.write(MESSAGE_MARK + b'{"kind": "listening", "at": 1}\n')
    else:
        end = End(Kind.KILLED, "node1", now - 1.0, 1, signal=9)
        until = time.monotonic() + DELAY_S
        while time.monotonic() < until:
            launcher.beat()
            time.sleep(0.05)
    launcher.send(WorkerEnded(end))
    while not _is_told_to_stop(launcher) and not launcher.ended:
        launcher.beat()
        time.sleep(0.05)
    launcher.send(Ended(1))
    return 1


def listens(launcher: Channel, assignment: dict[str, Any]) -> int:
    """End well after hearing from the launcher for `LISTENS_S`; the worker prints a lot."""
    run_dir = Path(assignment["spec"]["run_dir"])
    for folder in ("workers", "exits"):
        (run_dir / folder).mkdir()
    (run_dir / "workers" / "rank_00000.out").write_bytes(b"x" * (PRINTED_BYTES - 1) + b"\n")
    end = time.monotonic() + LISTENS_S
    while time.monotonic() < end:
        launcher.send(Beat(time.time()))
        is_told = _is_told_to_stop(launcher)
        if is_told or launcher.ended or launcher.silent_s > SILENT_S:
            return fails(launcher, assignment)
        time.sleep(0.05)
    done = {"rank": 0, "cause": "done", "message": "", "time_unix_s": 0.0, "code": 0}
    (run_dir / "exits" / "rank_00000.json").write_text(json.dumps(done))
    launcher.send(Ended(0))
    return 0


def _send_oddity(launcher: Channel) -> None:
    launcher.write(MESSAGE_MARK + b'{"kind": "nodeready", "node": "node0", "host": "\\u001b[2J"}\n')


def _is_told_to_stop(launcher: Channel) -> bool:
    return any(isinstance(message, Stop) for message in launcher.receive())


MODES = {mode.__name__: mode for mode in (fails, is_full, is_odd, outlives, late_culprit, listens)}


def main() -> int:
    launcher = Channel(os.dup(0), os.dup(1), from_leader)
    assigned = launcher.first(Assign)
    assert assigned is not None
    return MODES[sys.argv[1]](launcher, json.loads(assigned.assignment))


if __name__ == "__main__":
    sys.exit(main())
