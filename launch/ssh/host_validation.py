"""Check that a node's login is a user, a host and a port for ssh, and nothing else.

A hosts file may come from anywhere, and its words become arguments of ssh and rsync. So a word is
accepted only if it cannot mean anything else. A name that begins with '-' would be an option. A
space or a quote would end a word of the remote shell. The resolver reads a number such as 4 or
10.0.0.010 as a different address than people do.
"""

import ipaddress
import re
from collections.abc import Sequence

from launch.spec import NodeSpec
from muster.errors import refuse

WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,252}")
MOST_NODES = 4096
MOST_PROBLEMS = 50  # printed; for a file of the wrong kind the first ones are enough
PlacedNodes = Sequence[tuple[str, NodeSpec]]  # (file and line, the node named there)


def quoted(text: str) -> str:
    """`text` in quotes, as a short line, whatever characters it contains."""
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}..."


def parse_word(what: str, text: str) -> str:
    """`text`, if it is a valid name; `what` is "user" or "host".

    Raises:
        ValueError: `text` is not a valid name; the message says what is wrong, and what to do.
    """
    if what == "host" and ":" in text:
        return str(_ip(text))
    if not WORD.fullmatch(text):
        use = "use letters, digits, '.', '-', '_' and '+', and begin with a letter or digit"
        raise ValueError(f"{what} {quoted(text)}: {use}\ntip: write user@host:22, or only host")
    is_number = what == "host" and re.fullmatch(r"[0-9.]+", text)
    return str(_ip(text)) if is_number else text


def parse_port(text: str) -> int:
    """The port number in `text`.

    Raises:
        ValueError: `text` is not a port number.
    """
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise ValueError(
            f"port {quoted(text)} is not a number from 1 to 65535\ntip: write it as in host:22"
        )
    return int(text)


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IP address in `text`, at which other machines may reach a node.

    Raises:
        ValueError: `text` is not an IP address, or other nodes cannot reach this address.
    """
    ip = _ip(text)
    if ip.is_loopback or ip.is_unspecified or ip.is_multicast or ip.is_link_local:
        raise ValueError(f"other nodes cannot reach {text}\ntip: give the node's own address")
    return ip


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        if "%" not in text:  # a zone only has a meaning on its own machine
            return ipaddress.ip_address(text)
    except ValueError:
        pass
    raise ValueError(f"{quoted(text)} is not an IP address\ntip: write it as in 10.10.1.1")


def valid_nodes(nodes: PlacedNodes, problems: Sequence[str], no_nodes: str) -> tuple[NodeSpec, ...]:
    """The nodes, if there are no problems and no node was given twice.

    `problems` were found earlier, and `no_nodes` is the problem to report if there are no nodes.

    Raises:
        UsageError: a line for each problem.
    """
    lines = list(problems)
    given: dict[object, str] = {}
    for where, node in nodes:
        login = (node.user, node.host.lower(), node.port)
        for key in (login, node.address):
            if key is not None and key in given:
                name = f"address {key}" if key == node.address else f"node {node.name}"
                more = "" if key == node.address else ", with slots=2 for two workers"
                lines.append(
                    f"{where}: {name} is already given at {given[key]}\ntip: give it once{more}"
                )
            given.setdefault(key, where)
    if len(nodes) > MOST_NODES:
        lines.append(f"{nodes[MOST_NODES][0]}: more than {MOST_NODES} nodes\ntip: give fewer")
    if not nodes and not lines:
        lines.append(no_nodes)
    refuse(lines[:MOST_PROBLEMS])
    return tuple(node for _, node in nodes)
