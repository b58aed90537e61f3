"""The forms of what a node may answer: it is not trusted with more than facts about itself."""

import ipaddress
from collections.abc import Callable
from typing import Any

from launch.nodes import node_facts
from launch.nodes.message_forms import fits, is_port, is_size

GPUS = 1_024  # on one node


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
        "disks": {str: {"folder": str, "exists": bool, "free_bytes": is_size}},
        "gpus": _are_gpus,
    },
    node_facts.claim: ({}, {"foreign": [str]}, {"failed": str}),
    node_facts.claimed_by: [_is_node],
    node_facts.leftovers: [
        {"path": str, "run": str, "bytes": is_size, "checkpoints": bool, "used": bool}
    ],
    node_facts.remove_leftovers: {str: str},
    node_facts.tell_time: float,
    node_facts.listen: is_port,
    node_facts.connect: {str: _is_reach},
}
