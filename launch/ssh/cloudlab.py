"""Read a CloudLab manifest: where to log in, and the network that the nodes train on."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network

from launch.spec import NodeSpec
from launch.ssh.host_validation import (
    Gathered,
    Slots,
    address_problem,
    host_problem,
    port_problem,
    quoted,
    user_problem,
)
from muster.errors import UsageError

DISK = "emulab-blockstore"  # a disk on the network, which a manifest lists among the nodes
ASK = "give the manifest of a running experiment"


@dataclass(frozen=True)
class _Node:
    """A node as the manifest has it."""

    where: str
    logins: Mapping[str, tuple[str, int | None]]  # of each user: host, port
    addresses: tuple[IPv4Interface, ...]


def read_manifest(
    text: str,
    default_slots: Slots,
    where: str,
    *,
    user: str | None = None,
    me: str | None = None,
    network: str | None = None,
) -> tuple[NodeSpec, ...]:
    """The nodes of a GENI RSpec manifest, in its order.

    One logs in as `user`, without one as `me` where that is a member, else as the only member. The
    nodes train on the network that `network` is (a CIDR), without one on the only LAN of all.

    Raises:
        UsageError: the manifest is none, or does not settle where to log in or where to train.
    """
    gathered = Gathered()
    nodes = [_node(element, where, gathered) for element in _computers(_root(text, where))]
    gathered.check(where)
    members = _members(nodes, user, me, where, gathered)
    addresses = _addresses(nodes, network, where, gathered)
    gathered.check(where)
    for node, member, address in zip(nodes, members, addresses, strict=True):
        host, port = node.logins[member]
        gathered.add(node.where, NodeSpec(host, default_slots, member, port, address))
    return gathered.nodes(where, f"no nodes; {ASK}")


def _root(text: str, where: str) -> ET.Element:
    """The element that holds all others.

    Raises:
        UsageError: `text` is not XML, not such a document, or declares entities.
    """
    # looked for in the text: a parser would have expanded entities before it reports them
    if found := re.search(r"<!(DOCTYPE|ENTITY)", text):
        line = text.count("\n", 0, found.start()) + 1
        raise UsageError(f"{where}:{line}: {found[0]!r} has no place in a manifest; {ASK}")
    document = text.lstrip()  # its declaration may stand at the very beginning only
    parser = ET.XMLParser(encoding="utf-8")  # whatever the document says of itself
    try:
        parser.feed(document.encode("utf-8", "backslashreplace"))
        root: ET.Element = parser.close()
    except ET.ParseError as error:
        line = error.position[0] + text.count("\n", 0, len(text) - len(document))
        raise UsageError(f"{where}:{line}: not XML: {error.msg.split(':')[0]}; {ASK}") from None
    kind = root.get("type")
    if _name(root) != "rspec":
        raise UsageError(f"{where}: begins with {quoted(_name(root))}, not with 'rspec'; {ASK}")
    if kind not in ("manifest", "request"):  # manifests of either type have been seen
        raise UsageError(f"{where}: an rspec of type {quoted(str(kind))}, not 'manifest'; {ASK}")
    return root


def _name(element: ET.Element) -> str:
    """Without the namespace, of which several are in use."""
    return element.tag.rpartition("}")[2]


def _children(parents: Iterable[ET.Element], name: str) -> list[ET.Element]:
    return [child for parent in parents for child in parent if _name(child) == name]


def _computers(root: ET.Element) -> list[ET.Element]:
    return [
        node
        for node in _children([root], "node")
        if all(kind.get("name") != DISK for kind in _children([node], "sliver_type"))
    ]


def _node(element: ET.Element, file: str, gathered: Gathered) -> _Node:
    where = f"{file}: node {quoted(element.get('client_id', ''))}"
    logins: dict[str, tuple[str, int | None]] = {}
    members = _children(_children([element], "services"), "login")
    for login in members:
        user, host, port = (login.get(key, "") for key in ("username", "hostname", "port"))
        checks = (user_problem(user), host_problem(host), port_problem(port) if port else None)
        for problem in filter(None, checks):
            gathered.wrong(where, problem)
        if not any(checks):
            logins.setdefault(user, (host, int(port) if port else None))
    if not members:
        gathered.wrong(where, f"nobody can log in there; {ASK}")
    addresses = []
    for ip in _children(_children([element], "interface"), "ip"):
        if ip.get("type", "ipv4") != "ipv4":
            continue
        address, netmask = ip.get("address", ""), ip.get("netmask", "")
        if unfit := address_problem(address):
            gathered.wrong(where, unfit)
            continue
        try:
            addresses.append(IPv4Interface(f"{address}/{netmask}"))
        except ValueError:
            gathered.wrong(where, f"netmask {quoted(netmask)} of {address} is none; {ASK}")
    return _Node(where, logins, tuple(addresses))


def _members(
    nodes: Sequence[_Node], user: str | None, me: str | None, where: str, gathered: Gathered
) -> list[str]:
    """Who logs in to each node."""
    known = sorted({name for node in nodes for name in node.logins})
    member = user or (me if me and me in known else "")
    if not member and len(known) > 1:
        gathered.wrong(where, f"several people can log in: {', '.join(known)}; choose with --user")
        return [""] * len(nodes)
    member = member or "".join(known)
    for node in nodes:
        if member not in node.logins:
            can = ", ".join(sorted(node.logins))
            problem = f"{quoted(member)} cannot log in, only {can} can; choose with --user"
            gathered.wrong(node.where, problem)
    return [member] * len(nodes)


def _addresses(
    nodes: Sequence[_Node], network: str | None, where: str, gathered: Gathered
) -> list[str | None]:
    """Each node's address on the network to train on; a single node needs none."""
    chosen = _network(nodes, network, where, gathered)
    addresses: list[str | None] = []
    for node in nodes:
        own = [each for each in node.addresses if each.network == chosen]
        own += [
            each for each in node.addresses if chosen and each.ip in chosen
        ]  # it may hold several
        if chosen and not own:
            has = ", ".join(map(str, node.addresses)) or "no experiment address"
            problem = f"has no address in {chosen}, but {has}; add the nodes to one LAN"
            gathered.wrong(node.where, problem)
        addresses.append(str(own[0].ip) if own else None)
    return addresses


def _network(
    nodes: Sequence[_Node], network: str | None, where: str, gathered: Gathered
) -> IPv4Network | None:
    """The network to train on: `network`, or else the one in which every node has an address."""
    if network is not None:
        try:
            return IPv4Network(network)
        except ValueError:
            gathered.wrong(where, f"--network {quoted(network)} is none; write e.g. 10.10.1.0/24")
            return None
    counts = Counter(lan for node in nodes for lan in {each.network for each in node.addresses})
    of_all = sorted(lan for lan, count in counts.items() if count == len(nodes))
    if len(of_all) == 1 or len(nodes) < 2:
        return of_all[0] if len(of_all) == 1 else None
    if of_all:
        lans = ", ".join(map(str, of_all))
        gathered.wrong(where, f"the nodes share several LANs: {lans}; choose with --network")
        return None
    bare = [node for node in nodes if not node.addresses]
    for node in bare:
        gathered.wrong(node.where, "has no experiment address; add the nodes to one LAN")
    if not bare:
        lans = ", ".join(f"{lan} {count}" for lan, count in sorted(counts.items()))
        problem = f"no LAN has all {len(nodes)} nodes ({lans}); add the nodes to one LAN"
        gathered.wrong(where, problem)
    return None
