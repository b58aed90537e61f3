"""Waits of ranks for each other are explained even where torch records no collective."""

import re
import time
from contextlib import ExitStack
from dataclasses import replace

from launch.agent.inspection import local_workers
from launch.agent.inspection.diagnosis import sentences
from launch.agent.inspection.rank_view import RankView, view_of
from launch.nodes.messages import Frame, Group, InitCall
from launch.nodes.this_machine import free_port
from muster.checkout import CHECKOUT
from tests.commands import begin
from tests.fork_server import interpreter, skip_if_quick

PROGRAM = """
import os, sys
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=2)
"""
SENTENCE = (
    r"ranks 0, 1 .* init_process_group, in own\.py:\d+, for a store at 127\.0\.0\.1:(\d+), "
    r".* torchrun .* init_method='tcp://127\.0\.0\.1:\1'; .* --workers manual"
)


def test_why_ranks_wait_without_a_recorded_collective(tmp_path):
    skip_if_quick()
    (tmp_path / "own.py").write_text(PROGRAM)
    folder = tmp_path / "inspection"
    folder.mkdir()
    env = {"MUSTER_INSPECTION": str(folder), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    env |= {"MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    env |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    main = CHECKOUT / "muster" / "worker" / "worker_main.py"
    words = [interpreter(), main, tmp_path / "own.py", f"tcp://127.0.0.1:{free_port()}"]
    with ExitStack() as stack:
        for rank in range(2):
            process = begin(*words, env=env | {"RANK": str(rank)})
            stack.enter_context(process)
            stack.callback(process.kill)
        deadline, seen = time.monotonic() + 300, ""
        while time.monotonic() < deadline and not re.match(SENTENCE, seen):
            reports = local_workers.ask(folder, [0, 1], 60.0, ask="stacks")
            views = {rank: view_of(one, "node0") for rank, one in reports.items()}
            seen = sentences(views)[0]
            time.sleep(0.2)
        looks = local_workers.ask(folder, [0, 1], 60.0, ask="progress").values()
        assert all(look.init_call for look in looks)
    assert re.match(SENTENCE, seen)


LINE = Frame("/home/me/train.py", 7, "main", "init_process_group()", 40.0)


def in_init(rank, *, world_size=2, store="", serves=False):
    call = InitCall(rank, world_size, store, serves, False, "")
    return RankView(rank, "node0", True, "sleeping", "sleeps", user_frame=LINE, init_call=call)


def test_unserved_store_duplicate_rank_and_missing_ranks_are_named():
    lost = [replace(in_init(rank, store="10.0.0.9:4000"), rank=rank) for rank in (0, 1)]
    assert sentences(dict(enumerate(lost)))[0].startswith(
        "ranks 0, 1 are waiting in init_process_group, in main, train.py:7, for a store at "
        "10.0.0.9:4000, which no process serves: rank 0 "
    )
    served = [in_init(0, store="a:1", serves=True), in_init(1)]
    assert "store" not in sentences(dict(enumerate(served)))[0]
    twice = [replace(in_init(0), rank=rank, pid=70 + rank) for rank in (0, 1)]
    twice[1] = replace(twice[1], timed_out=True)  # this does not make rank 0 the cause
    (sentence,) = sentences(dict(enumerate(twice)))
    assert sentence.endswith(
        "rank 0 on node0 (pid 70) and rank 1 on node0 (pid 71) both call it with rank=0; each "
        "needs its own RANK"
    )
    sizes = [replace(in_init(rank, world_size=2 + rank), pid=70 + rank) for rank in (0, 1)]
    joined = replace(sizes[0], init_call=None, groups={"0": Group((0, 1), 3)})
    for first in (sizes[0], joined):
        (sentence,) = sentences({0: first, 1: sizes[1]})
        assert sentence.endswith(
            ": world sizes differ: rank 0 on node0 (pid 70) has 2, rank 1 on node0 (pid 71) has 3; "
            "all need the same WORLD_SIZE"
        )
    many = [in_init(rank, world_size=4) for rank in (0, 1)]
    (sentence,) = sentences(dict(enumerate(many)))
    assert sentence.endswith(" for 4 ranks (world_size=4), but the run has 2")


def test_ranks_that_have_ended_are_named_where_another_goes_on():
    ended = RankView(1, "node1", False, "dead", "", ended="exit code 0 at 12:00:03")
    waiting = replace(in_init(0), init_call=None)
    first, second = sentences({0: waiting, 1: ended})
    assert re.match("rank 0 on node0 .* without rank 1: .* main, train.py:7$", first)
    assert second == "rank 1 on node1: it has ended: exit code 0 at 12:00:03"
    (sentence,) = sentences({0: in_init(0), 1: ended})
    assert sentence == (
        "rank 1 on node1 has not reached init_process_group: it has ended: exit code 0 at "
        "12:00:03; rank 0 is waiting in init_process_group, in main, train.py:7"
    )
