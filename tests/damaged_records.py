"""Damaged records, as a node, program, full disk, other version or other user may leave them."""

import json

from hypothesis import strategies as st

from tests.launch.run_folders import leader

# Intact records of a run that a process on this machine leads.
RECORDS = {
    "job.json": {**leader(), "cluster": None, "boot_id": "b", "start_ticks": 7},
    "exit.json": {"code": 1, "message": "boom", "cause": "program", "rank": 0, "time_unix_s": 1.0},
    "agents/node_00000.json": {
        "index": 0,
        "node": "n0",
        "host": "h",
        "address": "10.0.0.1",
        "interface": "e",
        "ranks": [0],
        "time_unix_s": 1.0,
    },
    "agents/meeting.json": {"since_unix_s": 1.0, "text": "waiting"},
    "metrics/rank_00000.jsonl": {"kind": "step", "step": 3, "epoch": 0, "loss": 1.5, "step_s": 0.1},
    "start.json": {"step": 3, "total_steps": 9, "time_unix_s": 1.0},
    "launch.json": {"command": "python x", "stop_grace_s": 30.0, "nodes": []},
    "attempts/0/exit.json": {"code": 1, "message": "boom", "cause": "program", "rank": 0},
    "config.yaml": {"task": "x", "checkpoint_dir": "/nowhere", "checkpoint_every": "epoch"},
}
ODD = [10**30, -1, 2**40, "[/x]", "\x1b]0;x\a", "a\nb\r", "\udce9", "\x9b2J", "<img src=x>", "=1+1"]


def words_of(value):
    """Draw any value, or a dictionary with keys of `value`, as a node or program may write it."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    leaves |= st.sampled_from(ODD)
    nested = st.recursive(leaves, lambda one: st.lists(one, max_size=3), max_leaves=6)
    return nested | st.dictionaries(st.sampled_from([*value, "x"]), nested, max_size=3)


@st.composite
def damaged_record(draw, whole):
    """Draw a record's content that differs from `whole` in one value or key, or is no record."""
    key = draw(st.sampled_from([*whole]))
    text = json.dumps({**whole, key: draw(words_of(whole))})
    less = {name: value for name, value in whole.items() if name != key}
    contents = [
        *[text] * 3,  # more often: readers look at each value
        json.dumps(less),
        json.dumps(draw(words_of(whole))),
        text[: len(text) // 2],
        json.dumps(whole).replace("1", "[" * 3000 + "]" * 3000, 1),
        "[" * 100_000,
        "",
    ]
    return draw(st.sampled_from([*(one.encode() for one in contents), b"\xff\xfe\0"]))
