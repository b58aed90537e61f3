"""The cause of a run's end is chosen among values by one rule, in whatever order they come."""

import json
import random
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from launch.ends import (
    ENDED_WELL,
    MESSAGE_CHARACTERS,
    OLD_KINDS,
    OUTCOMES,
    STEPS,
    TRACEBACK_CHARACTERS,
    End,
    Kind,
    WorkerEnd,
    cause_of,
    end_of_worker,
    state_word,
)
from launch.runs.failure import PRINTED
from tests.fuzzing import fuzzed
from tests.launch.odd_messages import line, nearly

KILLED = End(Kind.KILLED, "node1", 5.0, 2, signal=9)
RAISED = End(Kind.PROGRAM, "node0", 6.0, 0, message="ValueError: 7", traceback="Traceback ...\n")
LOST = End(Kind.LOST_PEER, "node2", 1.0, 4, message="lost another worker")
TIMED_OUT = replace(LOST, message="Timed out waiting 3000ms")
GONE = End(Kind.NODE_LOST, "node1", 7.0, address="10.0.0.2")
BROKEN = "RuntimeError: Broken pipe"
ABORTED = "rank 1 on node0 was killed by SIGABRT"
EXIT = End(Kind.FAILED, "node2", 0.5, message="torchrun")
STARTER = replace(EXIT, ranks=(2, 3))


@st.composite
def any_ends(draw):
    """Draw ends of every kind, many of them at the same time, and a seed."""
    some = st.builds(
        End,
        st.sampled_from(Kind),
        st.sampled_from(["", "node0", "node1"]),
        st.sampled_from([0.0, 1.0, 1.5]),
        st.sampled_from([None, 0, 1]),
        st.sampled_from([0, 1, 75]),
        st.sampled_from([None, 9, 15]),
        st.sampled_from(["", "x", "Timed out"]),
    )
    return draw(st.lists(some, max_size=8)), draw(st.integers(0, 2**32))


@fuzzed(any_ends(), examples=300)
def test_the_order_of_arrival_decides_nothing(drawn):
    ends, seed = drawn
    shuffled = ends + ends[:2]  # one may come twice
    random.Random(seed).shuffle(shuffled)
    for nodes in ([], ["node0", "node1"]):
        assert cause_of(shuffled, nodes) == cause_of(ends, nodes)
    assert (cause_of(ends) is None) == (not ends)


@pytest.mark.parametrize(
    ("record", "process", "kind", "text"),
    [
        (None, (None, 9), Kind.KILLED, "rank 1 on node0 was killed by SIGKILL"),
        (None, (7, None), Kind.PROGRAM, "rank 1 on node0: exit code 7"),
        (None, (-1, None), Kind.PROGRAM, "rank 1 on node0: exit code 255"),
        (None, (0, None), Kind.DONE, ""),
        (None, (75, None), Kind.STOPPED, ""),
        (("done", ""), (None, 6), Kind.KILLED, f"{ABORTED}; {ENDED_WELL}"),
        (("done", ""), (120, None), Kind.PROGRAM, "rank 1 on node0: exit code 120"),
        (("done", ""), (0, None), Kind.DONE, ""),
        (("crash", "ValueError: 7"), (1, None), Kind.PROGRAM, "rank 1 on node0: ValueError: 7"),
        (("crash", "ValueError: 7"), (None, 9), Kind.PROGRAM, "rank 1 on node0: ValueError: 7"),
        (("crash", BROKEN), None, Kind.LOST_PEER, f"rank 1 on node0: {BROKEN}"),
        (("crash", "PeerFailed: x"), None, Kind.LOST_PEER, "rank 1 on node0: PeerFailed: x"),
        (("lost_peer", "Timed out"), None, Kind.LOST_PEER, "rank 1 on node0: Timed out"),
        (("exit", "no data"), (1, None), Kind.PROGRAM, "rank 1 on node0: no data"),
        (("signal", "by SIGTERM"), None, Kind.LOST_PEER, "rank 1 on node0: by SIGTERM"),
        (("a word of tomorrow", "x"), None, Kind.LOST_PEER, "rank 1 on node0: x"),
    ],
)  # fmt: skip
def test_a_worker_s_record_and_its_process_are_one_end(record, process, kind, text):
    if record is not None:
        cause, message = record
        record = {
            "cause": cause,
            "message": message,
            "traceback": "",
            "code": 143 if cause == "signal" else 1,
            "time_unix_s": 8.0,
        }
    if process is not None:
        process = WorkerEnd(1, *process, 9.0)
    end = end_of_worker("node0", 1, record, process, clock_offset_s=-2.0)
    assert (end.kind, end.text, end.rank, end.node) == (kind, text, 1, "node0")
    assert end.time_unix_s in (6.0, 7.0)
    assert end.waited_in_vain == ("Timed out" in text) and end.was_ended == ("SIGTERM" in text)


def test_a_rank_that_runs_has_no_end():
    assert end_of_worker("node0", 1, None) is None


NODE_LOST = (
    "lost contact with node1 (10.0.0.2): "
    "its agent was killed, the node went down, or the connection was lost"
)
# For each kind's example: its sentence, its word in exit.json, and whether it may have been caused
# by another end.
TOLD = {
    Kind.PROGRAM: ("rank 0 on node0: ValueError: 7", "program", False),
    Kind.KILLED: ("rank 2 on node1 was killed by SIGKILL", "killed", False),
    Kind.UNRECORDED: ("rank 2 on node1 ended without a message", "killed", True),
    Kind.LOST_PEER: ("rank 4 on node2: Timed out waiting 3000ms", "peer_lost", True),
    Kind.STOPPED: ("stopped cleanly after step 3", "stopped", True),
    Kind.DONE: ("", "left_early", True),
    Kind.REFUSED: ("there is no program x", "refused", False),
    Kind.NOT_STARTED: ("torchrun on node0 ended with exit code 1", "not_started", True),
    Kind.FAILED: ("torchrun on node2 ended with exit code 1", "failed", True),
    Kind.SIGNAL: ("node0 was sent SIGTERM", "signal", False),
    Kind.NODE_LOST: (NODE_LOST, "node_lost", False),
    Kind.FULL: ("node0: /logs: the disk is full", "disk_full", True),
    Kind.HANG: ("no progress for 10 min", "hang", False),
    Kind.TIMEOUT: ("rank 2 has not reached all_reduce", "timeout", False),
    Kind.JOB: ("Slurm reports NODE_FAIL for job 7", "job", True),
}


def test_each_kind_s_example_is_told_as_the_table_says():
    assert OUTCOMES.keys() == set(Kind) and len(Kind) <= 15 and set(PRINTED) < set(Kind)
    for kind, (example, word, *_, can_be_consequence, state) in OUTCOMES.items():
        assert (example.text, word, can_be_consequence) == TOLD[kind]
        assert state == ("stopped" if kind in (Kind.STOPPED, Kind.SIGNAL) else "failed")
        assert (kind.word, kind.state) == (word, state)
        assert kind.can_be_consequence == any(step.example.kind is kind for step in STEPS)


def test_each_step_s_example_comes_before_that_of_the_next():
    for kind in Kind:
        if not kind.can_be_consequence:
            assert cause_of([STEPS[0].example, kind.example]) == kind.example
    for step, below in pairwise(STEPS):
        beside = [] if step.beside(below.example) else [TIMED_OUT]
        for ends in ([step.example, below.example], [below.example, step.example]):
            assert cause_of([*ends, *beside]) == step.example


@pytest.mark.parametrize(
    ("code", "cause", "state"),
    [
        (0, "", "done"),
        (75, "", "stopped"),
        (143, "", "stopped"),
        (143, "signal", "stopped"),
        (143, "program", "failed"),
        (143, "killed", "failed"),
        (139, "signal", "failed"),
        (1, "a word of tomorrow", "failed"),
    ],
)
def test_state_of_a_run_is_that_of_its_cause(code, cause, state):
    assert state_word(code, cause) == state


@pytest.mark.parametrize(
    ("kind", "fields", "now", "text"),
    [
        ("RAISED", {"rank": 1, "message": "x"}, Kind.PROGRAM, "rank 1 on node0: x"),
        ("EXITED", {"rank": 1, "code": 7}, Kind.PROGRAM, "rank 1 on node0: exit code 7"),
        ("INVALID", {"rank": 1, "message": "x"}, Kind.PROGRAM, "rank 1 on node0: x"),
        ("VANISHED", {"rank": 1}, Kind.UNRECORDED, "rank 1 on node0 ended without a message"),
        ("ENDED", {"rank": 1, "message": "hung"}, Kind.UNRECORDED, "rank 1 on node0 hung"),
        ("TIMED_OUT", {"rank": 1, "message": "x"}, Kind.LOST_PEER, "rank 1 on node0: x"),
        ("TOLD", {"rank": 1, "code": 143, "message": "x"}, Kind.LOST_PEER, "rank 1 on node0: x"),
        (
            "STARTER", {"message": "torchrun", "ranks": [0, 1]}, Kind.FAILED,
            "torchrun on node0 ended with exit code 1",
        ),
        ("OTHER", {"message": "it ended"}, Kind.FAILED, "it ended"),
        (
            "TIME_UP", {"signal": 15}, Kind.SIGNAL,
            "node0: its job has nearly reached its time limit",
        ),
        ("GONE", {"address": "::1"}, Kind.NODE_LOST, NODE_LOST.replace("1 (10.0.0.2)", "0 (::1)")),
        (
            "SILENT", {"address": "::1", "message": "15 s"}, Kind.NODE_LOST,
            "no message from node0 (::1) for 15 s: is its network link down?",
        ),
        ("APART", {"message": "it waits"}, Kind.NODE_LOST, "it waits"),
        ("ODD", {"message": "x {y}"}, Kind.NODE_LOST, "node0 sent an invalid message: x {y}"),
        ("LAUNCHER", {"message": ""}, Kind.JOB, "node0 lost its connection to the launcher"),
    ],
)  # fmt: skip
def test_end_of_an_old_kind_is_read_as_one_of_today_s(kind, fields, now, text):
    assert kind in OLD_KINDS and kind not in Kind.__members__
    end = End.from_json({"kind": kind, "node": "node0", "time_unix_s": 5.0, **fields})
    assert (end.kind, end.text) == (now, text)
    assert end.was_ended == (kind in ("ENDED", "TOLD"))


@pytest.mark.parametrize("code", [0, 256])
def test_no_end_has_the_exit_code_of_a_success(code):
    assert End(Kind.PROGRAM, "node0", 1.0, 1, code).exit_code == 1


def test_end_in_a_record_of_an_earlier_run_is_read():
    recorded = {"kind": "KILLED", "node": "node1", "time_unix_s": 5, "rank": 2, "code": 1}
    recorded |= {"signal": 9, "message": "", "traceback": "", "address": "", "ranks": []}
    assert End.from_json(recorded) == KILLED
    assert json.loads(json.dumps(KILLED.to_json())) == recorded


def test_long_texts_lose_their_middle():
    long = replace(RAISED, message="m" * 10**6, traceback="begin" + "t" * 10**6 + "the end")
    sent = End.from_json(long.to_json())
    assert len(sent.message) <= MESSAGE_CHARACTERS and len(sent.traceback) <= TRACEBACK_CHARACTERS
    assert sent.traceback.startswith("begin") and sent.traceback.endswith("the end")


@fuzzed(nearly([end.to_json() for end in (KILLED, RAISED, LOST, GONE, EXIT, STARTER)]))
def test_damaged_end_is_an_end_or_none(raw):
    try:
        value = json.loads(line(raw, b""))
    except (RecursionError, ValueError):
        return
    end = End.from_json(value)
    if end is not None:
        assert isinstance(end.text, str) and 0 < end.exit_code < 256
        assert End.from_json(json.loads(json.dumps(end.to_json()))) == end
        end.text.encode(errors="strict")
        assert cause_of([end]) is not None
