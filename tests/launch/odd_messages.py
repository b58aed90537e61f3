"""Messages that are nearly like ours, to fuzz the code that receives them."""

import copy
import json
from typing import Any

from hypothesis import strategies as st

from launch.nodes.channel import MESSAGE_MARK

DEEP = "DEEP"  # stands for brackets that are nested too deeply for json.dumps
BRACKETS = {DEEP: "[" * 5_000 + "]" * 5_000}
ODD = [
    *(None, True, False, 0, 1, -1, 7, 65_536, 2**31, 2**40, 2**80, -(2**63), 0.5, -2.5, 1e308),
    *(float("nan"), float("inf"), "", "0", "node0", "\ud800", "\udce9", "\x1b[2J\r", "x\0y"),
    *("../../x", "/etc/passwd", "exits/rank_00000.json", "workers/rank_00001.out", "x" * 5_000),
    *([], [[]], [7], ["x"], {}, {"code": 0}, {"rank": 1}, {"7": 7}, 10**4_000, DEEP),
]


@st.composite
def nearly(draw: Any, messages: list[Any]) -> Any:
    """Draw one of `messages` with up to three changes: a value, a missing key, or a new key."""
    message = copy.deepcopy(draw(st.sampled_from(messages)))
    for _ in range(draw(st.integers(0, 3))):
        message = _changed(draw, message)
    return message


def _changed(draw: Any, message: Any) -> Any:
    inner = message
    while True:
        if not isinstance(inner, dict | list) or not inner:
            return message
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = draw(st.sampled_from(keys))
        if isinstance(inner[key], dict | list) and inner[key] and draw(st.integers(0, 3)):
            inner = inner[key]
            continue
        break
    how = draw(st.integers(0, 5))
    if how == 0:
        del inner[key]
    elif how == 1 and isinstance(inner, dict):
        inner[draw(st.sampled_from(["more", "", "\ud800", "rank", "code", "look"]))] = 7
    else:
        inner[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
    return message


def line(message: Any, mark: bytes = MESSAGE_MARK) -> bytes:
    """Return the line in which a node sends a message."""
    text = json.dumps(message)
    for name, brackets in BRACKETS.items():
        text = text.replace(f'"{name}"', brackets)
    return mark + text.encode() + b"\n"
