"""Which network the nodes' gradients take, chosen from what each node says of its interfaces."""

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.errors import MusterError

# For each node: the own address from which it sends to each of the addresses that it is given.
Routes = Callable[[Sequence[str]], Sequence[Mapping[str, str]]]


@dataclass(frozen=True)
class Choice:
    """A network and each node's address on it; `others` could have been chosen as well.

    Where nodes are on networks of their own, with routers between, it is one that covers them.
    """

    network: str
    addresses: tuple[str, ...]
    others: tuple[str, ...] = ()
    routed: bool = False


def choose(
    probes: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    own_addresses: Sequence[str | None],
    network: str | None,
    routes: Routes,
) -> Choice:
    """The addresses that the nodes reach each other at.

    Those in the network asked for by --network; those that a hosts file or manifest gave; those
    that are the nodes' names. What this leaves open: those on a network that all are on, best a
    private one other than that which ssh came by, as an experiment network is. Without such a
    network, what `routes` says of the ways to node 0.

    Raises:
        MusterError: there are none of these; lists what each node has.
    """
    _refuse_twins(probes, names)
    _refuse_absent(probes, names, own_addresses)
    left = _own(probes)
    if network is not None:
        wanted = ipaddress.ip_network(network)
        left = [[one for one in own if ipaddress.ip_address(one) in wanted] for own in left]
        if not all(left):
            have = _all(probes, names)
            raise MusterError(f"not all nodes have an address in --network {network}: {have}")
    elif not any(own_addresses):
        own_addresses = _numeric(names, left)
    named = [
        address if address in own else None
        for address, own in zip(own_addresses, left, strict=True)
    ]
    left = [[one] if one else own for one, own in zip(named, left, strict=True)]
    common = _common(probes, left)
    came_by = _CameBy(probes)
    if common:
        ranked = sorted(common, key=lambda net: _rank(common[net], came_by))
        best = ranked[0]
        others = tuple(net for net in common if net != best)
        return Choice(best, tuple(common[best]), others)
    settled = [network is not None or one is not None for one in named]
    addresses = _routed(left, settled, came_by, routes)
    if addresses is None:
        raise MusterError(
            f"the nodes have no network in common: {_all(probes, names)}; where they reach each "
            "other all the same, give each its address= in a hosts file"
        )
    return Choice(network or _covering(addresses), tuple(addresses), routed=True)


def _refuse_twins(probes: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Two names of one machine would be taken for two nodes."""
    seen: dict[tuple[str, ...], str] = {}
    for name, probe in zip(names, probes, strict=True):
        own = tuple(
            sorted(
                one["address"]
                for one in probe["interfaces"]
                if not ipaddress.ip_address(one["address"]).is_loopback
            )
        )
        if own and own in seen:
            raise MusterError(
                f"{seen[own]} and {name} are the same machine ({', '.join(own)}); name it once, "
                "with slots=2 for two workers"
            )
        seen[own] = name


def _refuse_absent(
    probes: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    addresses: Sequence[str | None],
) -> None:
    """An address that was given is meant, and a node that does not have it cannot listen there."""
    wrong = [
        f"{name} does not have the address {address} that was given for it: {_all([probe], [name])}"
        for probe, name, address in zip(probes, names, addresses, strict=True)
        if address and address not in [one["address"] for one in probe["interfaces"]]
    ]
    if wrong:
        raise MusterError("\n".join(wrong))


def _own(probes: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Of each node the addresses that no other has, as one of a bridge for containers may."""
    every = [[one["address"] for one in probe["interfaces"]] for probe in probes]
    return [
        [
            one
            for one in own
            if not ipaddress.ip_address(one).is_loopback
            and sum(one in others for others in every) == 1
        ]
        for own in every
    ]


def _numeric(names: Sequence[str], own: Sequence[Sequence[str]]) -> Sequence[str | None]:
    """The nodes' names, if all of them are addresses of theirs."""
    hosts = [name.rpartition("@")[2] for name in names]
    bare = [host[1:].partition("]")[0] if host[:1] == "[" else host for host in hosts]
    found = [one if one in own[i] else one.partition(":")[0] for i, one in enumerate(bare)]
    if all(one in usable for one, usable in zip(found, own, strict=True)):
        return found
    return [None] * len(names)


def _common(
    probes: Sequence[Mapping[str, Any]], left: Sequence[Sequence[str]]
) -> dict[str, list[str]]:
    """Every network on which each node has one of the addresses left: the first that it has."""
    found: dict[str, dict[int, str]] = {}
    for index, (probe, usable) in enumerate(zip(probes, left, strict=True)):
        for one in probe["interfaces"]:
            if one["address"] in usable:
                net = ipaddress.ip_network(f"{one['address']}/{one['netmask']}", strict=False)
                found.setdefault(str(net), {}).setdefault(index, one["address"])
    return {net: [*each.values()] for net, each in found.items() if len(each) == len(probes)}


class _CameBy:
    """The addresses that ssh came by, and all those of the same interfaces."""

    def __init__(self, probes: Sequence[Mapping[str, Any]]) -> None:
        self.addresses: set[str] = set()
        self.beside: set[str] = set()
        for probe in probes:
            own = {one["address"]: one["name"] for one in probe["interfaces"]}
            cards = {own.get(address) for address in probe["came_by"]}
            self.addresses |= set(probe["came_by"])
            self.beside |= {address for address, name in own.items() if name in cards}


def _rank(addresses: Sequence[str], came_by: _CameBy) -> tuple[bool, int, bool, bool]:
    """Less is better."""
    own, first = set(addresses), ipaddress.ip_address(addresses[0])
    near = bool(own & came_by.beside)
    return near, first.version, bool(own & came_by.addresses), not first.is_private


def _routed(
    left: Sequence[Sequence[str]], settled: Sequence[bool], came_by: _CameBy, routes: Routes
) -> list[str] | None:
    """Node 0's address and those from which the others send there; None if there are none.

    The network that ssh came by is the last to be taken. A node that is `settled` has only those
    addresses left that it was told to use.
    """
    if all(len(own) == 1 for own in left) and all(settled):
        found = [own[0] for own in left]
        return found if len({ipaddress.ip_address(one).version for one in found}) == 1 else None
    heads = sorted(left[0], key=lambda one: _rank([one], came_by))
    sources = routes(heads) if heads else []
    for head in heads:
        found = [head]
        for own, is_chosen, source in zip(left[1:], settled[1:], sources[1:], strict=True):
            ways = [source[head]] if source.get(head) in own else list(own[:1]) if is_chosen else []
            near = head in came_by.addresses
            found += [way for way in ways if is_chosen or near or way not in came_by.addresses]
        if len(found) == len(left):
            return found
    return None


def _covering(addresses: Sequence[str]) -> str:
    """The smallest network that has all of them."""
    net = ipaddress.ip_network(addresses[0])
    while not all(ipaddress.ip_address(one) in net for one in addresses):
        net = net.supernet()
    return str(net)


def _all(probes: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    return "; ".join(
        f"{name} has "
        + ", ".join(f"{one['address']} on {one['name']}" for one in probe["interfaces"])
        for name, probe in zip(names, probes, strict=True)
    )
