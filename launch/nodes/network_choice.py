"""Choose the network for the gradients, from each node's list of interfaces.

How it works: the candidates of each node are all its addresses that no other node has. Each request
removes candidates: first `--network`, then the addresses from a hosts file. Without either, the
hosts themselves count as requests if all of them are addresses. One of the remaining networks that
all nodes are on is chosen. An experiment network is preferred to the login network, so the address
that ssh used (`SSH_CONNECTION`), and all other addresses of that interface, come last. IPv4 comes
before IPv6, and private addresses come before public ones. If the nodes have no network in common,
as with /32 addresses, they use the requested addresses if there is one for each node.

Gloo and NCCL need an address of the node itself. So a given address that the node does not have is
an error, not a hint.
"""

import ipaddress
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from launch.nodes.answers import Probe
from muster.errors import MusterError


@dataclass(frozen=True)
class Choice:
    """A network and each node's address on it; `others` were also possible."""

    network: str | None  # None: the nodes are on different networks
    addresses: tuple[str, ...]
    others: tuple[str, ...] = ()


def choose(
    probes: Sequence[Probe], hosts: Sequence[str], given: Sequence[str | None], network: str | None
) -> Choice:
    """The network and addresses for traffic between nodes; `given`: addresses from a hosts file.

    Raises:
        MusterError: none can be chosen; the message lists the addresses of each node.
    """
    _refuse_twins(probes, hosts)
    _refuse_absent(probes, hosts, given)
    candidates = _unique_addresses(probes)
    if network is not None:
        wanted = ipaddress.ip_network(network)
        candidates = [
            [address for address in own if ipaddress.ip_address(address) in wanted]
            for own in candidates
        ]
        if not all(candidates):
            have = _listing(probes, hosts)
            raise MusterError(f"not all nodes have an address in --network {network}: {have}")
    elif not any(given) and all(host in own for host, own in zip(hosts, candidates, strict=True)):
        given = hosts
    requested = [
        address if address in own else None for address, own in zip(given, candidates, strict=True)
    ]
    candidates = [
        [address] if address else own for address, own in zip(requested, candidates, strict=True)
    ]
    if common := _common_networks(probes, candidates):
        logins = _LoginAddresses(probes)
        best, *others = sorted(common, key=lambda net: _sort_key(common[net], logins))
        return Choice(best, tuple(common[best]), tuple(net for net in common if net in others))
    are_asked_for = network is not None or all(requested)
    versions = {ipaddress.ip_address(address).version for own in candidates for address in own}
    if are_asked_for and all(len(own) == 1 for own in candidates) and len(versions) == 1:
        return Choice(network, tuple(own[0] for own in candidates))
    raise MusterError(
        f"the nodes have no network in common: {_listing(probes, hosts)}; if they can reach each "
        "other, give the address= of each node in a hosts file"
    )


def _refuse_twins(probes: Sequence[Probe], hosts: Sequence[str]) -> None:
    """Refuse two names for the same machine, which would count as two nodes."""
    seen: dict[tuple[str, ...], str] = {}
    for name, probe in zip(hosts, probes, strict=True):
        every = sorted(interface.address for interface in probe.interfaces)
        own = tuple(address for address in every if not ipaddress.ip_address(address).is_loopback)
        if own and own in seen:
            raise MusterError(
                f"{seen[own]} and {name} are the same machine ({', '.join(own)})"
                "\ntip: list it once, with slots=2 for two workers"
            )
        seen[own] = name


def _refuse_absent(
    probes: Sequence[Probe], hosts: Sequence[str], addresses: Sequence[str | None]
) -> None:
    """Refuse an address that was given for a node but that the node does not have."""
    wrong = [
        f"{name} does not have its given address {address}: {_listing([probe], [name])}"
        for probe, name, address in zip(probes, hosts, addresses, strict=True)
        if address and address not in [interface.address for interface in probe.interfaces]
    ]
    if wrong:
        raise MusterError("\n".join(wrong))


def _unique_addresses(probes: Sequence[Probe]) -> list[list[str]]:
    """Each node's addresses that no other node has; container bridges are the same on all nodes."""
    every = [[interface.address for interface in probe.interfaces] for probe in probes]
    count = Counter(itertools.chain(*map(set, every)))
    return [
        [
            address
            for address in own
            if count[address] == 1 and not ipaddress.ip_address(address).is_loopback
        ]
        for own in every
    ]


def _common_networks(
    probes: Sequence[Probe], candidates: Sequence[Sequence[str]]
) -> dict[str, list[str]]:
    """Every network that all nodes are on, with each node's first address in it."""
    networks: dict[str, dict[int, str]] = {}
    for index, (probe, usable) in enumerate(zip(probes, candidates, strict=True)):
        for interface in probe.interfaces:
            if interface.address in usable:
                net = ipaddress.ip_network(f"{interface.address}/{interface.netmask}", strict=False)
                networks.setdefault(str(net), {}).setdefault(index, interface.address)
    return {net: [*each.values()] for net, each in networks.items() if len(each) == len(probes)}


class _LoginAddresses:
    """The addresses through which ssh logged in, and all other addresses of their interfaces."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self.addresses: set[str] = set()
        self.beside: set[str] = set()
        for probe in probes:
            own = {interface.address: interface.name for interface in probe.interfaces}
            cards = {own.get(address) for address in probe.came_by}
            self.addresses |= set(probe.came_by)
            self.beside |= {address for address, name in own.items() if name in cards}


def _sort_key(addresses: Sequence[str], logins: _LoginAddresses) -> tuple[bool, int, bool, bool]:
    """The sort key of a network, from the nodes' addresses on it: the lowest is the best."""
    own = set(addresses)
    first = ipaddress.ip_address(addresses[0])
    near = bool(own & logins.beside)
    return near, first.version, bool(own & logins.addresses), not first.is_private


def _listing(probes: Sequence[Probe], hosts: Sequence[str]) -> str:
    return "; ".join(
        f"{name} has "
        + ", ".join(f"{interface.address} on {interface.name}" for interface in probe.interfaces)
        for name, probe in zip(hosts, probes, strict=True)
    )
