"""A node's login is what ssh takes for a user, a host and a port, and for nothing else.

A hosts file may come from anywhere, and its words become arguments of ssh and rsync. So a word is
taken only if it can be nothing else: a name that begins with '-' would be an option, a space or a
quote would end a word of the remote shell, and a number such as 4 or 10.0.0.010 is another machine
to the resolver than to the reader. Each `*_problem` returns None, or what is wrong and what to do;
`Gathered` collects them with the nodes, so that a user sees all problems of a file at once.
"""

import ipaddress
import re
from typing import Literal

from launch.spec import NodeSpec
from muster.errors import refuse

Slots = int | Literal["gpu"]

MOST_NODES = 4096
MOST_PROBLEMS = 50  # of a file of the wrong kind the first are enough
MOST_QUOTED = 80
LONGEST_HOST = 253  # DNS


def quoted(text: str) -> str:
    """`text` as one short line, whatever characters it has."""
    return repr(text) if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]!r}..."


def user_problem(user: str) -> str | None:
    """What is wrong with `user`, and what to do."""
    if not user:
        return "the user before '@' is empty; write user@host, or host alone"
    if user.startswith("-"):
        return f"user {quoted(user)} begins with '-', as an option does; write user@host"
    if bad := re.search(r"[^A-Za-z0-9.+_-]", user):
        return f"user {quoted(user)} has {bad[0]!r}; use letters, digits, '.', '-', '_' and '+'"
    return None


def host_problem(host: str) -> str | None:
    """What is wrong with `host`, and what to do."""
    if not host:
        return "a host is empty; write user@host, and one ',' between two of them"
    if ":" in host:
        return _ipv6_problem(host)
    if host.startswith(("-", ".")):
        return f"host {quoted(host)} begins with {host[0]!r}; begin with a letter or digit"
    if bad := re.search(r"[^A-Za-z0-9._-]", host):
        return f"host {quoted(host)} has {bad[0]!r}; use letters, digits, '.', '-' and '_'"
    if len(host) > LONGEST_HOST:
        return f"host {quoted(host)} is longer than {LONGEST_HOST} characters; give its short name"
    # resolvers read 4 as 0.0.0.4, and 10.0.0.010 as 10.0.0.8
    if re.fullmatch(r"[0-9.]+", host) and _ipv4(host) is None:
        return f"host {quoted(host)} is neither a name nor an IPv4 address; write e.g. 10.10.1.1"
    return None


def _ipv6_problem(host: str) -> str | None:
    try:
        ip = ipaddress.IPv6Address(host)
    except ValueError:
        return f"host {quoted(host)} is not an IPv6 address; write [fd00::1]:22, or host:22"
    if ip.scope_id is not None:
        return f"host {quoted(host)} has a zone, which is of one machine; leave out all from '%' on"
    return None


def port_problem(port: str) -> str | None:
    """What is wrong with `port`, and what to do."""
    if re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535:
        return None
    return f"port {quoted(port)} is not a number from 1 to 65535; write host:22, or host alone"


def address_problem(address: str) -> str | None:
    """Why other nodes cannot reach this one at `address`, and what to do."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return f"address {quoted(address)} is not an IP address; write e.g. 10.10.1.1"
    if (
        ip.is_loopback
        or ip.is_unspecified
        or ip.is_multicast
        or ip.is_reserved
        or (ip.version == 6 and (ip.is_link_local or "%" in address))
    ):
        return f"other nodes cannot reach {address}; give the node's own address, e.g. 10.10.1.1"
    return None


def _ipv4(text: str) -> ipaddress.IPv4Address | None:
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        return None


class Gathered:
    """Nodes in the order of their ranks, none of them twice, and all that is wrong with them."""

    def __init__(self) -> None:
        self._nodes: list[NodeSpec] = []
        self._problems: list[str] = []
        self._given: dict[tuple[object, ...], str] = {}  # where, for each login and address
        self._is_over = False

    @property
    def room(self) -> int:
        """How many more nodes there may be."""
        return MOST_NODES - len(self._nodes)

    def wrong(self, where: str, problem: str) -> None:
        if len(self._problems) < MOST_PROBLEMS:
            self._problems.append(f"{where}: {problem}")

    def add(self, where: str, node: NodeSpec) -> None:
        if not self.room:
            if not self._is_over:
                self.wrong(where, f"more than {MOST_NODES} nodes; give fewer")
            self._is_over = True
            return
        keys: dict[tuple[object, ...], str] = {
            (node.user, node.host.lower(), node.port): f"node {node.name}"
        }
        if node.address is not None:
            keys[(node.address,)] = f"address {node.address}"
        for key, name in keys.items():
            first = self._given.setdefault(key, "")
            if first:
                self.wrong(where, f"{name} was given before, at {first}; give each only once")
            self._given[key] = first or where
        self._nodes.append(node)

    def check(self, where: str) -> None:
        """Stop if anything was wrong so far.

        Raises:
            UsageError: with a line for each problem.
        """
        if len(self._problems) == MOST_PROBLEMS:
            self._problems.append(f"{where}: there may be more; correct these first")
        refuse(self._problems)

    def nodes(self, where: str, none: str) -> tuple[NodeSpec, ...]:
        """All nodes; `none` says what to do where there are none.

        Raises:
            UsageError: anything was wrong.
        """
        if not self._nodes and not self._problems:
            self.wrong(where, none)
        self.check(where)
        return tuple(self._nodes)
