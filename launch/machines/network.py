"""Which network the nodes' gradients take, chosen from what each node says of its interfaces."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from configs.errors import MusterError


@dataclass(frozen=True)
class Choice:
    """A network and each node's address on it; `others` could have been chosen as well."""

    network: str
    addresses: tuple[str, ...]
    others: tuple[str, ...] = ()


def choose(
    probes: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    given: Sequence[str | None],
    network: str | None,
) -> Choice:
    """The network on which all nodes have an address of their own.

    That is, in this order: the one asked for by --network; that of the addresses that a hosts
    file or manifest gave; that of numeric host names; a private network other than the one that
    ssh came by, as an experiment network is; and the one that ssh came by.

    Raises:
        MusterError: the nodes have no such network in common; lists what each has.
    """
    _refuse_twins(probes, names)
    common = _common(probes)
    if network is not None:
        for net, found in common.items():
            if all(ipaddress.ip_address(one) in ipaddress.ip_network(network) for one in found):
                return _choice(net, common)
        raise MusterError(
            f"not all nodes have an address in --network {network}: {_all(probes, names)}"
        )
    for named in (given, [_numeric(probe_name) for probe_name in names]):
        for net, found in common.items():
            if all(one == address for one, address in zip(named, found, strict=True)):
                return _choice(net, common)
    if not common:
        raise MusterError(f"the nodes have no network in common: {_all(probes, names)}")
    came_by = {address for probe in probes for address in probe["came_by"]}
    ranked = sorted(
        common,
        key=lambda net: (
            bool(came_by & set(common[net])),
            not ipaddress.ip_network(net).is_private,
        ),
    )
    return _choice(ranked[0], common)


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


def _choice(net: str, common: Mapping[str, Sequence[str]]) -> Choice:
    return Choice(net, tuple(common[net]), tuple(other for other in common if other != net))


def _common(probes: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Every network in which each node has an address that no other has."""
    found: dict[str, list[str]] = {}
    for probe in probes:
        for interface in probe["interfaces"]:
            address = ipaddress.ip_address(interface["address"])
            if not address.is_loopback:
                net = ipaddress.ip_network(f"{address}/{interface['netmask']}", strict=False)
                found.setdefault(str(net), []).append(str(address))
    return {net: each for net, each in found.items() if len(each) == len(set(each)) == len(probes)}


def _numeric(name: str) -> str | None:
    host = name.rpartition("@")[2].partition(":")[0]
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def _all(probes: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    return "; ".join(
        f"{name} has "
        + ", ".join(f"{one['address']} on {one['name']}" for one in probe["interfaces"])
        for name, probe in zip(names, probes, strict=True)
    )
