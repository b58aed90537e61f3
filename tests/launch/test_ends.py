"""The cause of a run's end is chosen among values by one rule, in whatever order they come."""

import json
import random

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from launch.ends import (
    ENDED_WELL,
    MESSAGE_CHARACTERS,
    TRACEBACK_CHARACTERS,
    WORDS,
    End,
    Kind,
    WorkerEnd,
    cause_of,
    end_of_worker,
)
from tests.fuzzing import fuzzed
from tests.launch.odd_messages import line, nearly

KILLED = End(Kind.KILLED, "node1", 5.0, 2, signal=9)
RAISED = End(Kind.RAISED, "node0", 6.0, 0, message="ValueError: 7", traceback="Traceback ...\n")
LOST = End(Kind.LOST_PEER, "node2", 1.0, 4, message="lost another worker")
TIMED_OUT = replace(LOST, kind=Kind.TIMED_OUT, message="Timed out waiting 3000ms")
ENDED = End(Kind.ENDED, "node3", 0.0, 6, message="was waiting for a disk or a file server")
GONE = End(Kind.GONE, "node1", 7.0, address="10.0.0.2")
SIGNALS = [End(Kind.SIGNAL, f"node{index}", 2.0 + index, signal=15) for index in range(3)]
ABORTED = "rank 1 on node0 was killed by SIGABRT"
EXIT = End(Kind.STARTER, "node2", 0.5, message="torchrun")


@st.composite
def any_ends(draw):
    """Ends of every kind, of which many are at the same time."""
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


FULL = End(Kind.FULL, "", 9.0, message="full")
NO_RECORD = End(Kind.EXITED, "node0", 2.0, 0, 7)
FULL_ELSEWHERE = End(Kind.FULL, "node9", 9.0, message="full")


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        ([LOST, EXIT, RAISED, KILLED], KILLED),  # by itself, before a lost peer; the earliest
        ([LOST, replace(RAISED, time_unix_s=4.0), KILLED], replace(RAISED, time_unix_s=4.0)),
        ([LOST, GONE, *SIGNALS[:1]], GONE),  # of which the signal is a consequence
        ([LOST, RAISED, *SIGNALS[:1]], SIGNALS[0]),  # what is told to end may raise
        ([LOST, EXIT], LOST),
        ([LOST, TIMED_OUT, ENDED], ENDED),
        ([LOST, ENDED], LOST),  # its agent ended it with all others
        ([LOST, End(Kind.DONE, "node0", 9.0, 0, 0)], End(Kind.DONE, "node0", 9.0, 0, 0)),
        ([EXIT, End(Kind.DONE, "node0", 0.0, 0, 0)], EXIT),
        ([LOST, FULL], FULL),
        ([LOST, NO_RECORD, FULL], FULL),
        ([LOST, NO_RECORD, replace(FULL, node="node0")], replace(FULL, node="node0")),
        ([NO_RECORD, FULL_ELSEWHERE], NO_RECORD),
        ([LOST, replace(RAISED, time_unix_s=4.0), FULL], replace(RAISED, time_unix_s=4.0)),
        ([], None),
    ],
)
def test_own_end_comes_before_a_lost_peer(ends, cause):
    for _ in ends or [0]:
        ends = [*ends[1:], *ends[:1]]
        assert cause_of(ends) == cause


def test_a_signal_to_all_nodes_is_one_to_the_run():
    nodes = [end.node for end in SIGNALS]
    assert cause_of(SIGNALS, nodes).text == "stopped by SIGTERM"
    assert cause_of(SIGNALS[1:], nodes).text == "node1 was sent SIGTERM"


@pytest.mark.parametrize(
    ("record", "process", "kind", "text"),
    [
        (None, (None, 9), Kind.KILLED, "rank 1 on node0 was killed by SIGKILL"),
        (None, (7, None), Kind.EXITED, "rank 1 on node0: exit code 7"),
        (None, (-1, None), Kind.EXITED, "rank 1 on node0: exit code 255"),
        (None, (0, None), Kind.DONE, ""),
        (None, (75, None), Kind.STOPPED, ""),
        (("done", ""), (None, 6), Kind.KILLED, f"{ABORTED}; {ENDED_WELL}"),
        (("done", ""), (120, None), Kind.EXITED, "rank 1 on node0: exit code 120"),
        (("done", ""), (0, None), Kind.DONE, ""),
        (("crash", "ValueError: 7"), (1, None), Kind.RAISED, "ValueError: 7"),
        (("crash", "ValueError: 7"), (None, 9), Kind.RAISED, "ValueError: 7"),
        (("crash", "RuntimeError: Broken pipe"), None, Kind.LOST_PEER, "RuntimeError: Broken pipe"),
        (("crash", "PeerFailed: lost rank 2"), None, Kind.LOST_PEER, "PeerFailed: lost rank 2"),
        (("lost_peer", "Timed out"), None, Kind.TIMED_OUT, "Timed out"),
        (("exit", "no data"), (1, None), Kind.EXITED, "rank 1 on node0: no data"),
        (("signal", "stopped by SIGTERM"), None, Kind.TOLD, "rank 1 on node0: stopped by SIGTERM"),
        (("a word of tomorrow", "x"), None, Kind.TOLD, "rank 1 on node0: x"),
    ],
)  # fmt: skip
def test_a_worker_s_record_and_its_process_are_one_end(record, process, kind, text):
    if record is not None:
        cause, message = record
        record = {
            "cause": cause,
            "message": message,
            "traceback": "",
            "code": 1,
            "time_unix_s": 8.0,
        }
    if process is not None:
        process = WorkerEnd(1, *process, 9.0)
    end = end_of_worker("node0", 1, record, process, clock_offset_s=-2.0)
    assert (end.kind, end.text, end.rank, end.node) == (kind, text, 1, "node0")
    assert end.time_unix_s in (6.0, 7.0)


def test_a_rank_that_runs_has_no_end():
    assert end_of_worker("node0", 1, None) is None


def test_each_kind_has_a_word_and_a_text():
    for kind in Kind:
        end = End(kind, "node0", 1.0, 1, 7, 9, "why")
        assert kind.word == WORDS[kind] and isinstance(end.text, str) and end.exit_code == 137


@pytest.mark.parametrize("code", [0, 256])
def test_no_end_has_the_exit_code_of_a_success(code):
    assert End(Kind.EXITED, "node0", 1.0, 1, code).exit_code == 1


def test_an_end_is_the_same_after_its_way_through_json():
    for end in (KILLED, RAISED, LOST, GONE, EXIT, replace(EXIT, ranks=(2, 3))):
        assert End.from_json(json.loads(json.dumps(end.to_json()))) == end


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


@fuzzed(nearly([end.to_json() for end in (KILLED, RAISED, LOST, GONE, EXIT)]))
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
