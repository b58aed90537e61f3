"""When a collective fails, the ranks exchange how they end; a rank that does not is named.

A rank whose collective fails closes its connections. So within moments all others fail as well,
except those that are gone or hang. Nothing is sent before a failure, so steps cost nothing more.

Each rank appends one line to the key `ends` of the store, as JSON, and reads the lines of others:

    {"rank": 2, "kind": "lost peer", "message": "...", "where": "step 41", "waited_s": 0.0}

The first line of a rank counts. A rank then reports (`blame`) the first row that applies. Ranks
without a line are "absent".

    another rank failed by itself        rank 1 on node1 failed: its message
    some have left without the others    these ranks have left muster.init()
    some timed out, and some are absent  the absent ranks did not come in time: they hang
    others timed out, this rank did not  the others did not wait longer for this rank
    some are absent                      its own message, which names the absent ranks
    some were told to stop               these ranks were told to stop
    none of these                        its own message
"""

import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal

import torch.distributed as dist

from muster.errors import text_of
from muster.worker.lost_peer import HAS_LEFT

from .exit_guard import PeerFailed, Stopped, judge
from .world import World

GRACE_S = 2.0  # time for the others to report how they end
# The same if torchrun's agent does not serve the store: on a busy machine, ranks end slowly.
GRACE_WITHOUT_AGENT_S = 6.0
TELL_S = 0.5  # time to report it, if this rank need not hear from the others, or an agent does
POLL_S = 0.05
ANSWER_S = 1.0  # for an answer from a store that has been asked all the time
# In gloo's message, and in that of NCCL's watchdog.
TIMED_OUT = re.compile(r"timed out waiting (\d+)ms|\bTimeout\(ms\)=(\d+)", re.IGNORECASE)
# gloo's message for a collective if another one of the same rank, at the same time, timed out.
CLOSED_BY_TIMEOUT = "application timeout caused pair closure"
MOST_NAMED = 8


@dataclass(frozen=True)
class End:
    """How a rank leaves the others before everything is done."""

    rank: int
    kind: Literal["late peer", "lost peer", "stopped", "failed", "left"]
    message: str
    where: str = ""  # its progress
    waited_s: float = 0.0  # waiting for the late peer

    @property
    def is_echo(self) -> bool:
        """Whether the cause is on another rank."""
        return self.kind in ("late peer", "lost peer")


def end_of(rank: int, error: BaseException, timeout_s: float = 0.0) -> End:
    """The end of a rank with `error`; `timeout_s` is the timeout of its collectives."""
    _, cause, message = judge(error)
    if cause == "signal":
        return End(rank, "stopped", message)
    if cause != "lost_peer" or isinstance(error, PeerFailed):
        return End(rank, "failed", message)
    progress = " ".join(getattr(error, "__notes__", ()))
    text = text_of(error)  # the message is its beginning
    if match := TIMED_OUT.search(text):
        timeout_s = int(match[1] or match[2]) / 1000
    elif CLOSED_BY_TIMEOUT not in text.lower():
        return End(rank, "lost peer", message, progress)
    return End(rank, "late peer", message, progress, timeout_s)


def note_left(rank: int, store: dist.Store) -> None:
    """Note for the others that this rank is done, and no longer uses its connections."""
    _append(End(rank, "left", ""), store)


def others_failed(store: dist.Store) -> bool:
    """Whether a rank has noted an end other than `note_left`."""
    return store.check(["ends"]) and any(end.kind != "left" for end in _read(store).values())


def _append(end: End, store: dist.Store) -> None:
    line = json.dumps(asdict(end)) + "\n"
    store.append("ends", line)  # type: ignore[attr-defined]  # torch's types lack it


def _read(store: dist.Store) -> dict[int, End]:
    lines = store.get("ends").decode().splitlines()
    return {end.rank: end for end in (End(**json.loads(line)) for line in reversed(lines))}


def explained(
    error: BaseException, world: World, hosts: Sequence[str], store: dist.Store, timeout_s: float
) -> BaseException:
    """The error to end with: `error`, or for a consequence, an error that names the rank at fault.

    Each rank that leaves early calls this after it has left the process group. `hosts` has the host
    of each rank; `timeout_s` is the timeout of collectives.
    """
    own_end = end_of(world.rank, error, timeout_s)
    serves = world.is_main and not world.agent_store
    ends = {own_end.rank: own_end}
    last_answer = 0.0

    def exchange() -> None:
        """Tell the other ranks, and learn of their ends; in a thread, as a store may hang."""
        nonlocal ends, last_answer
        with suppress(RuntimeError):  # the store is gone, with the rank that served it
            _append(own_end, store)
            while len(ends) < world.world_size:
                ends = _read(store)
                last_answer = time.monotonic()
                time.sleep(POLL_S)
            store.add("ends/read", 1)
            while serves and store.add("ends/read", 0) < world.world_size:
                time.sleep(POLL_S)

    thread = threading.Thread(target=exchange, name="ends", daemon=True)
    thread.start()
    grace_s = GRACE_S if world.agent_store else GRACE_WITHOUT_AGENT_S
    waits = not world.is_led and (own_end.is_echo or serves)
    with suppress(Stopped, KeyboardInterrupt):
        thread.join(grace_s if waits else TELL_S)
    if not own_end.is_echo:
        return error
    # the rank that serves the store is alive if the store still answers
    answers = not world.agent_store and time.monotonic() - last_answer < ANSWER_S
    answered = last_answer > 0 or world.agent_store
    return blame(own_end, ends, hosts, answered=answered, rank_0_lives=answers)


def blame(
    own_end: End,
    ends: Mapping[int, End],
    hosts: Sequence[str],
    *,
    answered: bool,
    rank_0_lives: bool,
) -> PeerFailed:
    """The reason for `own_end`, given the known ends; if not `answered`, rank 0 counts as absent.

    If rank 0 is known to be alive, it is not lost: gloo keeps connections open until a process
    ends, so a rank that waits for a failed one may notice it only then.
    """
    # if the store did not answer, no other rank's end is known
    absent = [rank for rank in range(len(hosts)) if rank not in ends] if answered else [0]
    text = own_end.message
    known = list(ends.values())
    if failed := [end for end in known if end.kind == "failed"]:
        return PeerFailed(f"{_named([failed[0].rank], hosts)} failed: {failed[0].message}")
    if left := [end.rank for end in known if end.kind == "left"]:
        return PeerFailed(
            f"{_named(left, hosts)} {HAS_LEFT}; all ranks must leave it at the same step",
            missing=left,
        )
    late = [end for end in known if end.kind == "late peer"]
    if late and absent:
        progress = f" ({late[0].where})" if late[0].where else ""
        text = (
            f"the other ranks waited {late[0].waited_s:g} s for {_named(absent, hosts)} and "
            f"timed out{progress}: {'they hang, or are' if absent[1:] else 'it hangs, or is'} "
            "far slower than the others"
        )
    elif late and own_end not in late:
        text = (
            f"the other ranks waited {late[0].waited_s:g} s for {_named([own_end.rank], hosts)} "
            f"and timed out{f' ({own_end.where})' if own_end.where else ''}"
        )
    elif absent:
        if rank_0_lives:
            absent = [rank for rank in absent if rank] or absent
        text = own_end.message.replace("another worker", _named(absent, hosts), 1)
    elif stopped := [end.rank for end in known if end.kind == "stopped"]:
        text = f"{_named(stopped, hosts)} {'were' if stopped[1:] else 'was'} told to stop"
    return PeerFailed(text, missing=absent)


def _named(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    more = f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else ""
    return ", ".join(f"rank {rank} on {hosts[rank]}" for rank in ranks[:MOST_NAMED]) + more
