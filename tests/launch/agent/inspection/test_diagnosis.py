"""The first sentence about a hung run names the rank that the others wait for, and where it is."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.agent.inspection.diagnosis import condition, own_times, sentences, slow_ranks
from launch.agent.inspection.rank_view import RankView, view_of
from launch.nodes.messages import (
    ChildReport,
    Collective,
    Frame,
    Group,
    ProcessReport,
    Report,
    Thread,
)

LINE = Frame("/home/me/train.py", 13, "load_data", "time.sleep(1)", 40.0)
STEP = Frame("/home/me/train.py", 20, "step", "all_reduce(x)", 40.0)


def collective(number, *, group="0", operation="all_reduce", shape=(1000,), waits=True, name=""):
    return Collective(group, name, number, operation, (shape,), ("Float",), waits, 40.0, 1800.0)


def sent(number):
    return collective(number, waits=False)


def view(rank, begun=5, *, place=STEP, waits=None, world=4, **more):
    """A rank that has begun `begun` collectives of the default group, and waits in `waits`."""
    groups, collectives = {"0": Group(tuple(range(world)), begun)}, (waits or sent(begun),)
    more |= {"answers": True, "status": "sleeping", "words": "sleeps", "user_frame": place}
    return RankView(rank, f"node{rank}", groups=groups, collectives=collectives, **more)


def waiting(rank, number=6, **more):
    return view(rank, number, waits=collective(number), **more)


def diagnosed(*views, **more):
    return sentences({one.rank: one for one in views}, **more)


def test_rank_that_gave_up_alone_does_not_wait_for_itself():
    """The other rank has begun the same collective and has ended."""
    ended = replace(view(0, 6, world=2), ended="exit code 1")
    lines = diagnosed(ended, waiting(1, timed_out=True, world=2))
    assert "waiting for rank 1" not in " ".join(lines)


def test_a_rank_that_has_not_come_is_named_with_its_line():
    (sentence,) = diagnosed(waiting(0), waiting(1), view(2, place=LINE), waiting(3))
    assert sentence == (
        "rank 2 on node2 has not reached all_reduce 6 of the default group: it has been sleeping "
        "for 40 s in load_data, train.py:13; ranks 0, 1, 3 are waiting and will time out in 29 min"
    )


@pytest.mark.parametrize("status", ["stopped", "dead"])
def test_stopped_or_dead_rank_comes_before_one_that_waits_unrecorded(status):
    """A rank waits like this in a backward pass of DDP, before its collective is recorded."""
    stopped = replace(view(2), status=status)
    lines = diagnosed(view(0, place=LINE), waiting(1), stopped, waiting(3))
    assert [line.split(" has ")[0] for line in lines] == ["rank 2 on node2", "rank 0 on node0"]


@given(st.integers(2, 12).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_exactly_those_are_named_that_have_not_come(case):
    world, late = case
    if not 0 < len(late) < world:
        return
    views = [
        view(rank, place=LINE, world=world) if rank in late else waiting(rank, world=world)
        for rank in range(world)
    ]
    found = diagnosed(*views)
    named = {int(one.split()[1]) for one in found if one.startswith("rank ")}
    rest = [one for one in found if one.startswith("the same is true")]
    assert named == set(sorted(late)[:3]) and bool(rest) == (len(late) > 3)


def test_rank_that_waits_for_a_waiting_rank_is_no_cause():
    # rank 0 waits for rank 1 in the default group; rank 1 waits for rank 2 in a group of these two
    inner = collective(3, group="1", name="pair")
    second = replace(view(1, waits=inner), groups={"0": Group((0, 1, 2), 5), "1": Group((1, 2), 3)})
    third = replace(view(2, place=LINE), groups={"0": Group((0, 1, 2), 5), "1": Group((1, 2), 2)})
    (sentence,) = diagnosed(waiting(0, world=3), second, third)
    assert re.match(r"rank 2 on node2 .* all_reduce 6 of the default group: ", sentence)
    assert sentence.partition("; ")[2].startswith("ranks 0, 1 ")


def test_ranks_that_enter_groups_in_different_orders_wait_for_each_other():
    inner = collective(3, group="1", name="pair")
    first = replace(view(0, waits=inner), groups={"0": Group((0, 1), 5), "1": Group((0, 1), 3)})
    second = replace(waiting(1), groups={"0": Group((0, 1), 6), "1": Group((0, 1), 2)})
    (sentence,) = diagnosed(first, second)
    assert sentence == (
        "ranks are waiting for each other, as they enter groups in different orders: rank 0 is in "
        "all_reduce 3 of group 1 (pair), in step, train.py:20 and is waiting for rank 1; rank 1 is "
        "in all_reduce 6 of the default group, in step, train.py:20 and is waiting for rank 0"
    )


def test_ranks_that_have_all_come_disagree_about_a_shape():
    shape = view(2, 6, waits=collective(6, shape=(7,)), place=LINE)
    (sentence,) = diagnosed(waiting(0), waiting(1), shape, waiting(3))
    assert sentence == (
        "ranks disagree about collective 6 of the default group: ranks 0, 1, 3: all_reduce [1000] "
        "Float, in step, train.py:20; rank 2: all_reduce [7] Float, in load_data, train.py:13"
    )


def test_roots_of_a_gather_may_have_other_shapes():
    ranks = [view(r, 6, waits=collective(6, operation="gather", shape=(r,))) for r in range(4)]
    assert not any("disagree" in one for one in diagnosed(*ranks))


def test_children_that_do_the_same_are_one_text():
    children = [
        ChildReport(7, "computes"),
        ChildReport(8, "is held by a debugger"),
        ChildReport(9, "computes"),
    ]
    one = replace(view(0), children=tuple(children))
    assert condition(one).partition("; ")[2] == (
        "each of its child processes 7, 9 is computing; its child process 8 is held by a debugger"
    )
    reads = "is in uninterruptible sleep, in read of /nfs/"
    children += [ChildReport(20 + file, f"{reads}{file}.tar") for file in range(4)]
    many = replace(one, children=tuple(children))
    assert condition(many).endswith(f"child process 20 {reads}0.tar; and 3 more child processes")


def test_children_that_sleep_are_not_named():
    children = (ChildReport(7, "sleeps"), ChildReport(8, "computes"))
    process = ProcessReport("sleeping", "sleeps", children)
    seen = view_of(Report(rank=0, answers=True, process=process), "node0")
    assert seen.children == (ChildReport(8, "computes"),)


OWN = Frame("/home/me/data.py", 7, "read")
LIBRARY = Frame("/x/site-packages/datasets/table.py", 7, "cast")
MUSTER = Frame("/opt/muster/train/sync/ranks.py", 7, "during")
INSTALLED = Frame("/x/lib/python3.11/site-packages/muster/records.py", 7, "during")
WORKER = Frame("/opt/muster/muster/worker/worker_main.py", 7, "during")
MINE = Frame("/opt/muster/mine/train/data.py", 7, "read")
PYTHON = Frame("/usr/lib64/python3.11/threading.py", 7, "wait")
TORCH = Frame("/x/site-packages/torch/distributed/distributed_c10d.py", 7, "during")
TRACE = Frame("<eval_with_key>.3", 7, "forward")


def report_in(*frames: Frame) -> Report:
    """The report of a rank whose main thread is in these frames."""
    process = ProcessReport("sleeping", "sleeps")
    main = Thread("main", True, frames)
    return Report(rank=0, answers=True, muster="/opt/muster", threads=(main,), process=process)


@pytest.mark.parametrize(
    ("frames", "file"),
    [
        ([WORKER, OWN, MUSTER, TORCH], "data.py"),
        ([WORKER, OWN, INSTALLED, TORCH, PYTHON, TRACE], "data.py"),
        ([WORKER, OWN, LIBRARY, MUSTER], "data.py"),
        ([WORKER, MUSTER, MINE, TORCH], "data.py"),  # beside Muster's folders, in its checkout
        ([WORKER, PYTHON, LIBRARY, MUSTER, TORCH], "table.py"),  # a package's own program
        ([WORKER, PYTHON, MUSTER, TORCH], "ranks.py"),  # Muster's own trainer
        ([WORKER, PYTHON], "threading.py"),
        ([WORKER], None),
    ],
)
def test_users_line_is_outside_muster_torch_and_python(frames, file):
    place = view_of(report_in(*frames), "node0").user_frame
    assert (place and Path(place.file).name) == file


def test_rank_at_end_of_init_has_left():
    leaves = Frame("/opt/muster/train/distributed/rendezvous.py", 7, "_leave_together")
    left = replace(view_of(report_in(OWN, leaves), "node0"), groups={"0": Group((0, 1), 5)})
    (sentence,) = diagnosed(left, waiting(1, world=2))
    assert sentence.endswith(
        ": it left muster.init(), in read, data.py:7; "
        "rank 1 is waiting, in step, train.py:20, and will time out in 29 min"
    )


def test_an_ended_rank_is_said_to_be_so():
    ended = replace(view(2), ended="exit code 0 at 12:00:03")
    (sentence,) = diagnosed(waiting(0), waiting(1), waiting(3), ended)
    assert ": exit code 0 at 12:00:03; ranks 0, 1, 3 are waiting, in step, train.py:20" in sentence


def test_a_rank_that_ended_because_another_gave_up_is_no_cause():
    gone = [replace(waiting(rank), timed_out=True) for rank in (1, 3)]
    ended = replace(view(0), groups={}, collectives=(), ended="exit code 1 at 12:00:03")
    held = {"status": "stopped", "words": "is stopped by a signal (SIGSTOP)"}
    stopped = replace(view(2), user_frame=None, **held)
    (sentence,) = diagnosed(replace(ended, lost_peer=True), *gone, stopped)
    assert re.match(r"rank 2 on node2 .* all_reduce 6 of the default group: ", sentence)
    assert "rank 0 on node0" in diagnosed(ended, *gone, stopped)[0]  # of its own accord


def test_without_collectives_the_rank_that_is_elsewhere_is_named():
    plain = [replace(view(r), groups={}, collectives=()) for r in range(4)]
    odd = replace(plain[2], user_frame=LINE)
    found = diagnosed(plain[0], plain[1], odd, plain[3])
    assert found[0].startswith("rank 2 on node2: ") and found[0].endswith("load_data, train.py:13")
    assert found[1].startswith("ranks 0, 1, 3: ") and found[1].endswith("in step, train.py:20")
    importing = [replace(one, imports=True) for one in plain]
    assert diagnosed(*importing) == ["all ranks are importing their modules"]
    brief = Frame(STEP.file, STEP.line, STEP.function, for_s=0.1)
    moving = [replace(one, user_frame=brief) for one in plain]
    assert diagnosed(*moving) == ["no rank has been waiting long in a collective"]


def test_a_lost_node_comes_first():
    found = diagnosed(waiting(0), waiting(1), view(2), waiting(3), lost={"node9": "no word"})
    assert found[0] == "node9 does not answer: no word"
    assert found[1].startswith("rank 2 on node2 ")


def test_rank_that_ended_first_is_one_of_those_that_disagree():
    """It was ahead, and the timeout of the other rank closed its connections."""
    ahead = view(1, 7, waits=collective(7), world=2)
    other = collective(6, operation="broadcast", waits=False)
    gone = {"ended": "exit code 1 at 12:00:03", "lost_peer": True, "answers": False}
    ahead = replace(ahead, collectives=(other, *ahead.collectives), **gone)
    (sentence,) = diagnosed(waiting(0, timed_out=True, world=2), ahead)
    assert sentence == (
        "ranks disagree about collective 6 of the default group: rank 0: all_reduce [1000] Float, "
        "in step, train.py:20; rank 1: broadcast [1000] Float, in step, train.py:20"
    )


def test_disagreeing_ranks_are_named_before_all_have_timed_out():
    # rank 1 has sent its broadcast, and waits in the next collective
    ahead = view(1, 7, waits=collective(7))
    other = collective(6, operation="broadcast", waits=False)
    ahead = replace(ahead, collectives=(other, *ahead.collectives), timed_out=True)
    views = [waiting(0, timed_out=True), ahead, waiting(2, timed_out=True), waiting(3)]
    (sentence,) = diagnosed(*views)
    assert sentence.startswith("ranks disagree about collective 6 of the default group: ranks 0, 2")
    assert "rank 1: broadcast" in sentence


# a slow rank is judged by its own time between collectives, whatever its node's clock says


def arrivals(own, steps=30):
    """When ranks arrive at collectives if they need these seconds of their own in between."""
    at, ended = {rank: {} for rank in range(len(own))}, 0.0
    for step in range(steps):
        for rank, seconds in enumerate(own):
            at[rank][step] = ended + seconds
        ended = max(one[step] for one in at.values())
    return at


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=8))
def test_own_times_are_found_again(own):
    assert own_times(arrivals(own)) == pytest.approx(dict(enumerate(own)))


def test_the_slow_one_is_named_and_how_much():
    slow = slow_ranks(arrivals([0.1, 0.1, 0.1, 0.14]))
    assert slow == pytest.approx({3: 1.4})
    assert slow_ranks(arrivals([0.1, 0.1, 0.11, 0.12])) == {}
    assert slow_ranks(arrivals([0.0, 0.0, 0.001])) == {}  # within the clocks' error


def test_too_few_collectives_or_ranks_say_nothing():
    assert own_times(arrivals([0.1, 0.2], steps=8)) == {} and own_times({0: {1: 0.0}}) == {}
    assert own_times({0: {1: 0.0, 2: 1.0}, 1: {5: 0.0}}) == {}
