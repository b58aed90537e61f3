"""An agent that starts nothing: `python -m tests.launch.pretended_agent MODE`.

`fails` ends at once, and so does `is_full`, whose disk is full; `is_odd` says what no agent says,
and waits for its end; `outlives` says that, too, and ends for a signal alone; `listens` has its one
worker print much, and ends well after a while in which it has heard from its launcher all the time.
`late_culprit` says at once on node 0 that its rank lost another, and on node 1 only after a while
that its rank was killed, which was earlier.
"""

import errno
import json
import os
import sys
import time
from pathlib import Path

from launch.ends import End, Kind
from launch.nodes.channel import MESSAGE_MARK, Channel
from launch.nodes.messages import Assign, Beat, Ended, Failed, Stop, WorkerEnded, from_leader
from muster.errors import explained

PRINTED_BYTES = 400_000
LISTENS_S = 9.0
SILENT_S = 6.0
DELAY_S = 2.0


def main() -> int:
    launcher = Channel(os.dup(0), os.dup(1), from_leader)
    assigned = launcher.first(Assign)
    assert assigned is not None
    assignment = json.loads(assigned.assignment)
    if sys.argv[1] in ("is_odd", "outlives"):
        launcher.write(
            MESSAGE_MARK + b'{"kind": "nodeready", "node": "node0", "host": "\\u001b[2J"}\n'
        )
        while sys.argv[1] == "outlives":
            time.sleep(1)
        while not launcher.ended:
            launcher.receive()
            time.sleep(0.01)
        return 1
    if sys.argv[1] == "late_culprit":
        return _end_one_after_the_other(launcher, assignment["index"])
    code = _listen(launcher, Path(assignment["spec"]["run_dir"])) if sys.argv[1] == "listens" else 1
    if code:
        message = f"it ended with {code}"
        if sys.argv[1] == "is_full":
            message = explained(OSError(errno.ENOSPC, "", "agents/node_00000.json"))
        end = End(Kind.REFUSED, "node0", time.time(), message=message)
        launcher.send(Failed(end))
    launcher.send(Ended(code))
    return code


def _end_one_after_the_other(launcher: Channel, index: int) -> int:
    now = time.time()
    if index == 0:
        end = End(Kind.LOST_PEER, "node0", now, 0, message="lost another worker")
        launcher.write(MESSAGE_MARK + b'{"kind": "listening", "at": 1}\n')
    else:
        end = End(Kind.KILLED, "node1", now - 1.0, 1, signal=9)
        _stay(launcher, DELAY_S)
    launcher.send(WorkerEnded(end))
    while not any(map(_is_stop, launcher.receive())) and not launcher.ended:
        launcher.beat()
        time.sleep(0.05)
    launcher.send(Ended(1))
    return 1


def _is_stop(message: object) -> bool:
    return isinstance(message, Stop)


def _stay(launcher: Channel, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        launcher.beat()
        time.sleep(0.05)


def _listen(launcher: Channel, run_dir: Path) -> int:
    for folder in ("workers", "exits"):
        (run_dir / folder).mkdir()
    (run_dir / "workers" / "rank_00000.out").write_bytes(b"x" * (PRINTED_BYTES - 1) + b"\n")
    end = time.monotonic() + LISTENS_S
    while time.monotonic() < end:
        launcher.send(Beat(time.time()))
        is_asked = any(map(_is_stop, launcher.receive()))
        if is_asked or launcher.ended or launcher.silent_s > SILENT_S:
            return 1
        time.sleep(0.05)
    done = {"rank": 0, "cause": "done", "message": "", "time_unix_s": 0.0, "code": 0}
    (run_dir / "exits" / "rank_00000.json").write_text(json.dumps(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
