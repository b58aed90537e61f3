"""The forms of what a node may answer: a node may only report facts about itself."""

import ipaddress
from collections.abc import Callable
from typing import Any

from launch.nodes import node_data, node_facts, resources
from launch.nodes.channel import is_line, is_port, is_size
from muster.records import dict_of, fits

MOST_GPUS = 1_024  # on one node
MOST_CPUS = 65_536


def _is_host(value: object) -> bool:
    return is_line(value) and bool(value) and not set(str(value)) & set("/ ")


def _is_interface(value: Any) -> bool:
    if not fits(value, dict.fromkeys(("name", "address", "netmask"), is_line)):
        return False
    try:
        ipaddress.ip_network(f"{value['address']}/{value['netmask']}", strict=False)
    except ValueError:
        return False
    return True


def _are_gpus(value: Any) -> bool:
    return fits(value, [is_line]) and len(value) <= MOST_GPUS


def _are_cores(value: Any) -> bool:
    """Whether it is `Cores` as JSON; each core has a CPU."""
    if not isinstance(value, list) or len(value) != 2 or not fits(value[1], (float, None)):
        return False
    cores_of_node = value[0]
    if not fits(cores_of_node, [[is_size]]) or not cores_of_node or not all(cores_of_node):
        return False
    return sum(map(len, cores_of_node)) <= MOST_CPUS


def _is_node(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 7


def _is_reach(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and is_line(value[0]) and fits(value[1], (float, None))


_FAILED = {"failed": is_line}
_VERSIONS = (
    None,
    {
        "python": is_line,
        "torch": (is_line, None),
        "transformers": (is_line, None),
        "plugins": [is_line],
    },
)
FORMS: dict[Callable[..., Any], Any] = {
    node_facts.describe: {
        "host": _is_host,
        "shared": bool,
        "folder": is_line,
        "python": is_line,
        "versions": _VERSIONS,
        "workers": _VERSIONS,
        "foreign": [is_line],
        "interfaces": [_is_interface],
        "came_by": [is_line],
        "towards_srun": (is_line, None),
        "has_rsync": bool,
        "disks": dict_of(is_line, {"folder": is_line, "exists": bool, "free_bytes": is_size}),
        "gpus": _are_gpus,
    },
    resources.node_resources: {
        "limits": dict.fromkeys(
            ("files", "processes", "shared_bytes", "free_shared_bytes"), (is_size, None)
        ),
        "cores": _are_cores,
    },
    node_facts.claim: ({}, {"foreign": [is_line]}, _FAILED),
    node_facts.claimed_by: [_is_node],
    node_facts.leftovers: [
        {"path": is_line, "run": is_line, "bytes": is_size, "checkpoints": bool, "used": bool}
    ],
    node_facts.remove_leftovers: dict_of(is_line, is_line),
    node_data.find_data_place: (_FAILED, {"place": is_line, "complete": bool}),
    node_data.claim_data_place: (_FAILED, {"state": is_line}),
    node_data.keep_data_place: {"over": bool, "error": is_line},
    node_data.clear_full_disk: {"full": bool},
    node_data.complete_data_place: (_FAILED, {}),
    node_data.data_left: [{"path": is_line, "bytes": is_size, "whole": bool, "used": bool}],
    node_data.remove_data: dict_of(is_line, is_line),
    node_facts.tell_time: float,
    node_facts.listen: is_port,
    node_facts.connect: dict_of(is_line, _is_reach),
}
