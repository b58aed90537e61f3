"""The forms of all messages between a run's leader and its agents, and of workers' answers.

Whoever receives a message checks it here, before anything of it is used. What has none of these
forms is the failure of its sender: the leader leaves such an agent, an agent ends its part, and a
worker counts as one that does not answer. What the messages are for: launch/agent/attempt.py.
What nodes answer before a run has its forms in `answer_forms.py`.
What a form is: muster/records.py.
"""

import ipaddress
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from launch import ends
from launch.spec import Assignment
from muster.errors import MusterError
from muster.printable import printable
from muster.records import dict_of, fits, is_count, is_exit_code, is_number, is_whole

FAILURE_CHARACTERS = 100_000  # of a failure, which may quote a program's output
QUOTED_CHARACTERS = 1_000  # around it, where it is passed on
TEXT_CHARACTERS = 4_096  # of a name, or a line of source
SHOWN_CHARACTERS = 200
DATA_CHARACTERS = 400_000  # of a part of a file, as base64: see log_sync.CHUNK_BYTES
SECONDS, MOST = 1e9, 1e18
RANKS = 65_536
PORTS = range(1, 65_536)
ADDRESS_CHARACTERS = 64  # of IPv6 with the name of a card
ID_CHARACTERS = 64  # of a question
ODD = "sent an odd message"  # what is said of an agent for which there is nothing else to say

Forms = Mapping[str, Any]


class OddMessage(MusterError):
    """A message has none of our forms; the text says what is odd about it."""


def is_line(value: object) -> bool:
    """Whether it is a short text that can be printed."""
    return isinstance(value, str) and len(value) <= TEXT_CHARACTERS and value.isprintable()


def check(message: Mapping[str, Any], forms: Forms) -> None:
    """Check a message by the form of the first name in it that is one of `forms`.

    Raises:
        OddMessage: it does not fit, or has no such name.
    """
    name = next((one for one in forms if one in message), None)
    if name is None:
        raise OddMessage(f"of no kind that is known here: {quoted(message)}")
    if not fits(message, forms[name]):
        raise OddMessage(f"{name!r}, which has another form than ours: {quoted(message)}")


def quoted(value: object) -> str:
    """The beginning of what a node has said, in a form that can be shown."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
    except RecursionError:
        text = "it is nested too deeply"
    return ascii(text[:SHOWN_CHARACTERS])


def cleaned(value: Any) -> Any:
    """A message that was checked, with escapes in its texts for all that could move a cursor."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [cleaned(one) for one in value]
    if isinstance(value, dict):
        return {key: cleaned(one) for key, one in value.items()}
    return value


def _text(most: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and len(value) <= most


def _seconds(most: float) -> Callable[[Any], bool]:
    return lambda value: _is_small_number(value) and 0 <= value <= most


def _below(end: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 0 <= value < end


def is_port(value: object) -> bool:
    return fits(value, int) and value in PORTS


def is_address(value: object) -> bool:
    """Whether it is the address of a machine, in numbers; IPv6 may name a card."""
    if not isinstance(value, str) or len(value) > ADDRESS_CHARACTERS or not value.isprintable():
        return False
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def _is_end_of_connection(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and is_address(value[0]) and is_port(value[1])


def is_size(value: Any) -> bool:
    return is_whole(value) and value >= 0


def is_request_id(value: object) -> bool:
    """Whether it may name a request, and the file for its answer."""
    return isinstance(value, str) and value.isalnum() and len(value) <= ID_CHARACTERS


def _is_true(value: object) -> bool:
    return value is True


def _is_small_number(value: Any) -> bool:
    return is_number(value) and abs(value) < MOST


def _is_file_name(value: object) -> bool:
    """Whether it may be the name of a file, in whatever letters; not yet whose file it is."""
    if not isinstance(value, str) or not 0 < len(value) <= TEXT_CHARACTERS:
        return False
    try:
        return "\0" not in value and bool(os.fsencode(value))
    except UnicodeEncodeError:
        return False


def _is_host(value: object) -> bool:
    return is_line(value) and bool(value) and "/" not in str(value)


def _is_end(value: object) -> bool:
    """Whether it is a record of an agent's end; the leader uses its exit code alone."""
    return isinstance(value, dict) and is_exit_code(value.get("code"))


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


WHERE = {"address": is_address, "port": is_port}
ENDS = {"own": _is_end_of_connection, "peer": _is_end_of_connection}
SOURCE, SHOWN = _text(TEXT_CHARACTERS), _text(FAILURE_CHARACTERS)
PASSED_ON = _text(FAILURE_CHARACTERS + QUOTED_CHARACTERS)
AGE = _seconds(SECONDS)
BEAT = (
    {"beat": (bool, int, float)},
    {"beat": (bool, int, float), "stands_s": AGE, "waits_for": SOURCE},
)
PLACE = {"file": SOURCE, "line": (None, int), "function": SOURCE}
COLLECTIVE = {
    "group": SOURCE,
    "description": SOURCE,
    "number": int,
    "operation": SOURCE,
    "shapes": [[int]],
    "types": [SOURCE],
    "waits": bool,
    "begun_unix_s": _is_small_number,
    "age_s": _is_small_number,
    "limit_s": _is_small_number,
}
MEETING = {
    "rank": (None, int),
    "world_size": (None, int),
    "store": SOURCE,
    "serves": bool,
    "by_launcher": bool,
    "method": SOURCE,
}
STACKS = {
    "gave_up?": (None, {"message": SOURCE, "frames": [PLACE]}),
    "threads?": [
        {
            "name": SOURCE,
            "main": bool,
            "frames": [{**PLACE, "text?": SOURCE, "for_s?": _is_small_number}],
        }
    ],
    "groups?": dict_of(is_line, {"ranks?": [_below(RANKS)], "begun?": int}),
    "collectives?": [COLLECTIVE],
    "meeting?": (None, MEETING),
}


def of_worker(rank: int) -> Any:
    """The form of what the worker of this rank answers to its agent."""
    return {
        "rank": _only(rank),
        "pid": is_count,
        "time_unix_s": _is_small_number,
        "begun?": int,
        "places?": [int],
        **STACKS,
    }


def _only(own: object) -> Callable[[object], bool]:
    return lambda value: type(value) is type(own) and value == own


def _is_rank_of(assignment: Assignment) -> Callable[[object], bool]:
    return lambda value: type(value) is int and value in assignment.ranks


def of_agent(assignment: Assignment) -> Forms:
    """The forms of what the agent with this assignment may say to its leader."""
    report = {
        "rank": _is_rank_of(assignment),
        "pid": (None, is_count),
        "time_unix_s": _is_small_number,
        "answers": bool,
        "clock_offset_s": _is_small_number,
        "process?": {"status": SOURCE, "words": SOURCE, "computing?": [is_count]},
        "is_command?": bool,
        **STACKS,
    }
    here = {
        "index": _only(assignment.index),
        "node": _only(assignment.name),
        "ranks": _only(list(assignment.ranks)),
        "address": is_line,
        "interface": (None, is_line),
        "time_unix_s": _is_small_number,
        "host": _is_host,
        "pid": is_count,
        "started_unix_s": _is_small_number,
        "start_ticks?": int,
        "boot_id?": is_line,
    }
    if assignment.index == 0:
        connections = {
            "listening": {"listening": WHERE},
            "accepted": {"accepted": ENDS},
            "master_port": {"master_port": is_port},
        }
    else:
        connections = {"connected": {"connected": ENDS}, "unreached": {"unreached": is_line}}
    return {
        "beat": BEAT,
        **connections,
        "broken": {"broken": {**ENDS, "how": lambda value: value in ("closed", "silent")}},
        "here": {"here": here},
        "file": {
            "file": _is_file_name,
            "at": is_size,
            "data": _text(DATA_CHARACTERS),
            "last": bool,
        },
        "inspected": {
            "inspected": (
                {"id": _only("still"), "still": {"s": AGE, "pause_s": AGE}},
                {"id": _only("timeout"), "look": _is_true},
                {"id": is_request_id, "complete": _is_true},
                {"id": is_request_id, "report": report},
            )
        },
        "stopping": {"stopping": _seconds(assignment.spec.stop_grace_s), "all?": bool},
        "done": {"done": _is_true},
        "failed": {"failed": {**ends.FORM, "rank": None}},
        "worker_end": {"worker_end": {**ends.FORM, "rank": _is_rank_of(assignment)}},
        "ended": {"ended": _is_end, "leaves?": bool},
    }


FROM_LEADER: Forms = {
    "beat": BEAT,
    "assignment": {"assignment": _is_object, "proof?": SOURCE},
    "connect": {"connect": {"address": is_line, "port": is_port}},  # by number, or by name
    "keep": {"keep": ENDS},
    "choose_port": {"choose_port": _is_true},
    "start": {"start": is_port},
    "notice": {"notice": _is_true},
    "stop": {"stop": is_exit_code, "why?": PASSED_ON, "signal?": PASSED_ON, "hurry?": bool},
    "lost": {"lost": PASSED_ON},
    "inspect": {
        "inspect": {"id": is_request_id, "ask": lambda value: value in ("stacks", "resume")},
    },
    "go": {"go": _is_true},
}
