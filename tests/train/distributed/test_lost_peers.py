"""The missing ranks are named; the ranks that waited for them are not blamed."""

import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from muster.errors import MusterError
from tests.launch.submit import wait_until
from tests.train.workers import errors_of, finish, free_port, read_json, start_by_hand
from train.distributed.exit_guard import PeerFailed, Stopped
from train.distributed.lost_peers import End, blame, end_of, explained
from train.distributed.world import World

HOSTS = ("a", "a", "b", "b")
LATE = RuntimeError("[x.cc:78] Timed out waiting 3000ms for recv operation to complete")
LOST = RuntimeError("[x.cc:553] Connection closed by peer [10.0.0.1]:5507. GLHF!")


# DDP's error for a bucket that was in progress beside the bucket that timed out.
BESIDE = RuntimeError(
    "Got the following error when running the callback: RuntimeError: "
    "Application timeout caused pair closure\n\nAt:\n  hooks.py(148): summed"
)


OF_NCCL = RuntimeError(
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=3000) ran for 3011 milliseconds before timing out."
)
REMOTE = RuntimeError(
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3699, remote process "
    "exited or there was a network error, NCCL version 2.27.5\nncclRemoteError: A call failed"
)


@pytest.mark.parametrize(
    ("error", "kind", "waited_s"), [(OF_NCCL, "late peer", 3.0), (REMOTE, "lost peer", 0.0)]
)
def test_nccls_words_of_another_rank_are_no_cause(error, kind, waited_s):
    end = end_of(0, error)
    assert (end.kind, end.waited_s) == (kind, waited_s)


def late(rank, where=""):
    error = RuntimeError(*LATE.args)
    if where:
        error.add_note(where)
    return end_of(rank, error)


def lost(rank):
    return end_of(rank, LOST)


TIMED_OUT = "the other ranks waited 3 s for rank 0 on a and timed out"
HANGS = "the other ranks waited 3 s for rank 2 on b and timed out (after step 7): it hangs"


GONE = "lost rank 2 on b ([x.cc:553] Connection closed"
NO_ANSWER, LIVES = {"answered": False}, {"rank_0_lives": True}


@pytest.mark.parametrize(
    ("ends", "known", "message", "missing"),
    [
        ([late(0, "after step 7"), lost(1), lost(3)], {}, HANGS, (2,)),
        (
            [lost(0), late(1)],
            {},
            "the other ranks waited 3 s for rank 2 on b, rank 3 on b and",
            (2, 3),
        ),
        ([lost(0), lost(1), lost(3)], {}, GONE, (2,)),
        ([lost(0), end_of(1, ValueError("no"))], {}, "rank 1 on a failed: ValueError: no", ()),
        ([lost(0), late(1), late(2), late(3)], {}, TIMED_OUT, ()),
        ([lost(0), end_of(1, Stopped(15)), lost(2), lost(3)], {}, "rank 1 on a was told to s", ()),
        ([lost(0), lost(1), lost(2), lost(3)], {}, "lost another worker ([x.cc:553]", ()),
        ([lost(0), lost(1), End(3, "left", "")], {}, "rank 3 on b left muster.init()", (3,)),
        ([late(1)], NO_ANSWER, "the other ranks waited 3 s for rank 0 on a ", (0,)),
        # rank 0 may wait for a failed rank, and notice when that rank's process is gone
        ([lost(1)], LIVES, "lost rank 2 on b, rank 3 on b ", (2, 3)),
    ],
)
def test_rank_at_fault_is_named(ends, known, message, missing):
    by_rank = {end.rank: end for end in ends}
    error = blame(ends[0], by_rank, HOSTS, **{"answered": True, "rank_0_lives": False} | known)
    assert str(error).startswith(message) and error.missing == missing


def test_many_lost_ranks_are_counted():
    error = blame(lost(0), {0: lost(0)}, ["h"] * 64, answered=True, rank_0_lives=False)
    assert "rank 8 on h and 55 more" in str(error) and len(error.missing) == 63


def test_errors_are_sorted_into_failed_late_lost_and_stopped():
    assert end_of(0, MusterError("no")).kind == end_of(0, PeerFailed("x")).kind == "failed"
    assert end_of(0, BESIDE, 5.0).kind == "late peer" and end_of(0, BESIDE, 5.0).waited_s == 5.0
    assert end_of(0, KeyError("x")) == End(0, "failed", "KeyError: 'x'")
    assert end_of(0, Stopped(15)).kind == "stopped" and lost(0).is_echo and late(0).is_echo


def test_failed_rank_is_named_to_others_through_the_store(monkeypatch):
    monkeypatch.setattr("train.distributed.lost_peers.GRACE_WITHOUT_AGENT_S", 100.0)
    store, ended = dist.HashStore(), {}

    def leave(rank, error):
        world = World(rank=rank, world_size=3)
        ended[rank] = explained(error, world, ["a", "b", "c"], store, 3.0)

    failed = UnicodeError("bad text")
    with ThreadPoolExecutor() as threads:  # all have reported, so nobody waits
        list(threads.map(leave, range(3), [LATE, LOST, failed], timeout=90))
    assert ended[2] is failed
    assert str(ended[0]) == str(ended[1]) == "rank 2 on c failed: UnicodeError: bad text"


class Hanging:
    """A store whose server has stopped."""

    def __init__(self):
        self.is_over = threading.Event()

    def append(self, key, value):
        self.is_over.wait(300)
        raise RuntimeError("Connection reset by peer")


@pytest.mark.slow
def test_hanging_store_does_not_delay_the_end(monkeypatch):
    monkeypatch.setattr("train.distributed.lost_peers.GRACE_WITHOUT_AGENT_S", 0.2)
    store = Hanging()
    error = explained(LATE, World(rank=1, world_size=2), ["a", "b"], store, 3.0)
    store.is_over.set()
    assert isinstance(error, PeerFailed) and error.missing == (0,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, r"lost rank 2 on "),
        (signal.SIGSTOP, r".* 15 s for rank 2 on \S+ and timed out \(after step "),
    ],
)
def test_stopped_or_killed_worker_is_named_by_its_peers(tmp_path, number, words):
    flags = ["--task", "synthetic", "--sync", "all_reduce", "--threads", "1", "--timeout-s", "15"]
    flags += ["--logs-dir", str(tmp_path), "--run-id", "run", "--epochs", "100000"]
    port, pids = free_port(), tmp_path / "pids"  # for a training worker's own pid
    pids.mkdir()
    workers = [
        start_by_hand(
            rank, 3, port, *flags, env={"MUSTER_STOPPABLE": str(pids)} if rank == 2 else {}
        )
        for rank in range(3)
    ]
    metrics = tmp_path / "run" / "metrics" / "rank_00002.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size)
    (pid,) = pids.iterdir()
    os.kill(int(pid.name), number)
    try:
        ended = finish(workers[:2], timeout_s=300)
    finally:
        workers[2].kill()
        finish(workers[2:])
    exits = tmp_path / "run" / "exits"
    for rank, (code, _, err) in enumerate(ended):
        (line,) = errors_of(err)
        assert code == 1 and re.match(f"error: {words}", line), err
        record = read_json(exits / f"rank_{rank:05d}.json")
        assert record["cause"] == "lost_peer" and record["missing"] == [2]
    assert not (exits / "rank_00002.json").exists()
