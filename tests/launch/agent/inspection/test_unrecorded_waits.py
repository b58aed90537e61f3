"""Ranks that wait for others where torch records no collective are explained, too."""

import re
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from launch.agent.inspection import local_workers
from launch.agent.inspection.diagnosis import sentences
from launch.agent.inspection.rank_view import Collective, Group, InitCall, Place, RankView, view_of
from launch.nodes.this_machine import free_port
from muster.checkout import CHECKOUT
from muster.worker import unrecorded_waits
from tests.commands import begin
from tests.preload import interpreter, skip_if_quick

PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
how, rank = sys.argv[1], int(os.environ["RANK"])
def load_data():
    time.sleep(10_000)
if how == "tcp":
    dist.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=2)
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if rank == 1:
    load_data()
dist.all_reduce(torch.ones(1000))
"""
IN_DATA = r": it is in load_data, own\.py:\d+, for "
SENTENCES = {
    "tcp": r"ranks 0, 1 wait in init_process_group, in own\.py:\d+, for a store at 127\.0\.0\.1:"
    r"(\d+), which nobody serves: under torchrun no rank serves what init_method='tcp://127\.0\.0"
    r"\.1:\1' names; leave init_method out, or use --workers manual",
    "detail": r"rank 1 on node0 has not come to all_reduce \d+ of the default group"
    + IN_DATA
    + r".*; rank 0 waits$",
}


@pytest.mark.parametrize("how", SENTENCES)
def test_why_ranks_wait_without_a_recorded_collective(how, tmp_path):
    skip_if_quick()
    (tmp_path / "own.py").write_text(PROGRAM)
    folder = tmp_path / "inspection"
    folder.mkdir()
    env = {"MUSTER_INSPECTION": str(folder), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    env |= {"MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    env |= {"TORCHELASTIC_USE_AGENT_STORE": str(how == "tcp")}
    env |= {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if how == "detail" else {}
    main = CHECKOUT / "muster" / "worker" / "worker_main.py"
    # torch reads the variable when it is loaded, which it is already in a preloaded Python
    python = interpreter() if how == "tcp" else sys.executable
    words = [python, main, tmp_path / "own.py", how, f"tcp://127.0.0.1:{free_port()}"]
    with ExitStack() as stack:
        for rank in range(2):
            process = begin(*words, env=env | {"RANK": str(rank)})
            stack.enter_context(process)
            stack.callback(process.kill)
        deadline, seen = time.monotonic() + 300, ""
        while time.monotonic() < deadline and not re.match(SENTENCES[how], seen):
            reports = local_workers.ask(folder, [0, 1], 60.0, ask="stacks")
            views = {rank: view_of(one, "node0") for rank, one in reports.items()}
            seen = sentences(views)[0]
            time.sleep(0.2)
        looks = local_workers.ask(folder, [0, 1], 60.0, ask="progress").values()
        assert all(bool(look["meeting"]) == (how == "tcp") for look in looks)
    assert re.match(SENTENCES[how], seen)


LINE = Place("/home/me/train.py", 7, "main", "init_process_group()", 40.0)


def in_init(rank, *, world_size=2, store="", serves=False):
    call = InitCall(rank, world_size, store, serves, False, "")
    return RankView(rank, "node0", True, "sleeping", "sleeps", place=LINE, init_call=call)


def test_unserved_store_duplicate_rank_and_missing_ranks_are_named():
    lost = [replace(in_init(rank, store="10.0.0.9:4000"), rank=rank) for rank in (0, 1)]
    assert sentences(dict(enumerate(lost)))[0].startswith(
        "ranks 0, 1 wait in init_process_group, in main, train.py:7, for a store at 10.0.0.9:4000, "
        "which nobody serves: rank 0 serves it"
    )
    served = [in_init(0, store="a:1", serves=True), in_init(1)]
    assert "nobody" not in sentences(dict(enumerate(served)))[0]
    twice = [replace(in_init(0), rank=rank, pid=70 + rank) for rank in (0, 1)]
    twice[1] = replace(twice[1], timed_out=True)  # it does not make rank 0 the cause
    (sentence,) = sentences(dict(enumerate(twice)))
    assert sentence.endswith(
        "rank 0 on node0 (pid 70) and rank 1 on node0 (pid 71) both call it with rank=0; each "
        "needs its own, as in RANK"
    )
    sizes = [replace(in_init(rank, world_size=2 + rank), pid=70 + rank) for rank in (0, 1)]
    joined = replace(sizes[0], init_call=None, groups={"0": Group((0, 1), 3)})
    for first in (sizes[0], joined):
        (sentence,) = sentences({0: first, 1: sizes[1]})
        assert sentence.endswith(
            ": world sizes differ: rank 0 on node0 (pid 70) has 2, rank 1 on node0 (pid 71) has 3; "
            "all need the same, as in WORLD_SIZE"
        )
    many = [in_init(rank, world_size=4) for rank in (0, 1)]
    (sentence,) = sentences(dict(enumerate(many)))
    assert sentence.endswith("it waits for 4 ranks (world_size=4), and the run has 2")


def test_wait_in_ddp_backward_pass_counts_as_unrecorded_collective(monkeypatch):
    inside = {"sys": sys}
    text = "def _engine_run_backward(): return sys._getframe()"
    exec(compile(text, "/packages/torch/autograd/graph.py", "exec"), inside)
    frame = inside["_engine_run_backward"]()
    assert unrecorded_waits.collective(frame, {"0": 4}, 40.0) is None
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    wait = Collective(**unrecorded_waits.collective(frame, {"0": 4}, 40.0))
    assert (wait.name, wait.waits, wait.age_s) == ("collective 5", True, 40.0)
    group = {"0": Group((0, 1), 4)}
    ranks = [replace(in_init(rank), rank=rank, init_call=None, groups=group) for rank in (0, 1)]
    (sentence,) = sentences({0: replace(ranks[0], collectives=(wait,)), 1: ranks[1]})
    assert sentence.startswith("rank 1 on node0 has not come to collective 5 of the default group")
    assert sentence.endswith("; rank 0 waits")  # how long at most is not known


def test_ranks_that_have_ended_are_named_where_another_goes_on():
    ended = RankView(1, "node1", False, "dead", "", ended="exit code 0 at 12:00:03")
    waiting = replace(in_init(0), init_call=None)
    first, second = sentences({0: waiting, 1: ended})
    assert first.startswith("rank 0 on node0 goes on without rank 1: it is in main, train.py:7")
    assert second == "rank 1 on node1: it has ended: exit code 0 at 12:00:03"
    (sentence,) = sentences({0: in_init(0), 1: ended})
    assert sentence == (
        "rank 1 on node1 has not come to init_process_group: it has ended: exit code 0 at "
        "12:00:03; rank 0 waits in init_process_group, in main, train.py:7"
    )
