"""The forms of what a node may answer: a node is not trusted with more than facts about itself.

A form is a type, a tuple of forms of which one fits, a list with the form of each element, or a
dict: of keys, each with its form, or of any texts as keys, `{str: FORM}`. A function is a form,
too; it says whether a value fits.
"""

import ipaddress
import json
import math
from collections.abc import Callable
from typing import Any

from launch.nodes import node_facts
from muster.printable import printable as printable

TEXT_CHARACTERS = 4_096
SHOWN_CHARACTERS = 200
GPUS = 1_024  # on one node
PORTS = range(1, 65_536)


def fits(value: object, form: Any) -> bool:
    """Whether a value, as JSON has it, is of this form; texts are short and can be printed."""
    if isinstance(form, tuple):
        return any(fits(value, one) for one in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(fits(one, form[0]) for one in value)
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return False
        if str in form:
            return all(fits(key, str) and fits(one, form[str]) for key, one in value.items())
        return value.keys() == form.keys() and all(fits(value[key], form[key]) for key in form)
    if not isinstance(form, type):
        return value is None if form is None else bool(form(value))
    if type(value) is not form:  # True is no number here
        return False
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, str) or (len(value) <= TEXT_CHARACTERS and value.isprintable())


def quoted(value: object) -> str:
    """The beginning of what a node has said, in a form that can be shown."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return ascii(text[:SHOWN_CHARACTERS])


def _is_host(value: object) -> bool:
    return fits(value, str) and bool(value) and not set(str(value)) & set("/ ")


def _is_interface(value: Any) -> bool:
    if not fits(value, {"name": str, "address": str, "netmask": str}):
        return False
    try:
        ipaddress.ip_network(f"{value['address']}/{value['netmask']}", strict=False)
    except ValueError:
        return False
    return True


def _are_gpus(value: Any) -> bool:
    return fits(value, [str]) and len(value) <= GPUS


def _is_port(value: object) -> bool:
    return fits(value, int) and value in PORTS


def _is_size(value: Any) -> bool:
    return fits(value, int) and 0 <= value < 1 << 63


def _is_node(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 7


def _is_reach(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and fits(value[0], str) and fits(value[1], (float, None))


FORMS: dict[Callable[..., Any], Any] = {
    node_facts.describe: {
        "host": _is_host,
        "shared": bool,
        "folder": str,
        "python": str,
        "versions": (None, {"python": str, "torch": (str, None), "transformers": (str, None)}),
        "foreign": [str],
        "interfaces": [_is_interface],
        "came_by": [str],
        "towards_srun": (str, None),
        "disks": {str: {"folder": str, "exists": bool, "free_bytes": _is_size}},
        "gpus": _are_gpus,
    },
    node_facts.claim: ({}, {"foreign": [str]}, {"failed": str}),
    node_facts.claimed_by: [_is_node],
    node_facts.tell_time: float,
    node_facts.listen: _is_port,
    node_facts.connect: {str: _is_reach},
}
