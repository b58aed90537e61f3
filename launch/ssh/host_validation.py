"""Check that a node's login is a user, a host and a port for ssh, and nothing else.

A hosts file may come from anywhere, and its words become arguments of ssh and rsync. So a word is
accepted only if it cannot mean anything else. A name that begins with '-' would be an option, and a
space or a quote would end a word of the remote shell. A number such as 4 or 10.0.0.010 is another
machine for the resolver than for the reader.
"""

import ipaddress
import re
from collections.abc import Sequence

from launch.spec import NodeSpec
from muster.errors import refuse

WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,252}")
MOST_NODES, MOST_PROBLEMS = 4096, 50  # of a file of the wrong kind, the first are enough
Found = Sequence[tuple[str, NodeSpec]]  # each node, and where it was given


def quoted(text: str) -> str:
    """`text` as one short line, whatever characters it has."""
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}..."


def word(what: str, text: str) -> str:
    """`text`, if it is a valid user or host.

    Raises:
        ValueError: what is wrong, and what to do.
    """
    if what == "host" and ":" in text:
        return str(_ip(text))
    if not WORD.fullmatch(text):
        use = "begin with a letter or digit, and use letters, digits, '.', '-', '_' and '+'"
        raise ValueError(f"{what} {quoted(text)}: {use}; write user@host:22, or host alone")
    is_number = what == "host" and re.fullmatch(r"[0-9.]+", text)
    return str(_ip(text)) if is_number else text


def port(text: str) -> int:
    """`text` as the number of a port.

    Raises:
        ValueError: it is not one.
    """
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise ValueError(f"port {quoted(text)} is not a number from 1 to 65535; write host:22")
    return int(text)


def address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address at which other machines may reach a node.

    Raises:
        ValueError: it is not one, or only reaches the machine itself.
    """
    found = _ip(text)
    if found.is_loopback or found.is_unspecified or found.is_multicast or found.is_link_local:
        raise ValueError(f"other nodes cannot reach {text}; give the node's own address")
    return found


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        if "%" not in text:  # a zone is valid on one machine only
            return ipaddress.ip_address(text)
    except ValueError:
        pass
    raise ValueError(f"{quoted(text)} is not an IP address; write e.g. 10.10.1.1")


def checked(found: Found, problems: Sequence[str], none: str) -> tuple[NodeSpec, ...]:
    """The nodes, if nothing is wrong and none was given twice; `none` is the error for no nodes.

    Raises:
        UsageError: a line for each problem.
    """
    lines, given = list(problems), dict[object, str]()
    for where, node in found:
        login = (node.user, node.host.lower(), node.port)
        for key in (login, node.address):
            if key is not None and key in given:
                name = f"address {key}" if key == node.address else f"node {node.name}"
                more = "" if key == node.address else ", with slots=2 for two workers"
                lines.append(
                    f"{where}: {name} was given before, at {given[key]}; give it once{more}"
                )
            given.setdefault(key, where)
    if len(found) > MOST_NODES:
        lines.append(f"{found[MOST_NODES][0]}: more than {MOST_NODES} nodes; give fewer")
    if not found and not lines:
        lines.append(none)
    refuse(lines[:MOST_PROBLEMS])
    return tuple(node for _, node in found)
