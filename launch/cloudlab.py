"""Read a CloudLab manifest: who may log in where, and the addresses on the experiment network.

A manifest is a GENI RSpec, of whatever version and prefixes. A node's `host` element names the
control network, which must not carry gradients, so it is never used.
"""

import getpass
import ipaddress
import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from configs.errors import UsageError, refuse
from configs.launching import Slots
from launch.spec import NodeSpec


def read(
    text: str, slots: Slots, *, user: str | None, network: str | None, where: str
) -> tuple[NodeSpec, ...]:
    """The nodes of a manifest, in its order; `where` goes before an error.

    Raises:
        UsageError: not a manifest, or one that does not say how nodes are reached.
    """
    # Declarations could make a small file a huge one, or read other files; no manifest has any.
    if re.search(r"<!(DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise UsageError(f"{where}has a DOCTYPE, as no manifest does; refused")
    try:
        root = ElementTree.fromstring(text.strip())
    except ElementTree.ParseError as error:
        raise UsageError(f"{where}not XML: {error}") from None
    if _tag(root) != "rspec":
        raise UsageError(f"{where}not a manifest: its root is <{_tag(root)}>, not <rspec>")
    nodes = [element for element in root if _tag(element) == "node"]
    if not nodes:
        raise UsageError(f"{where}has no nodes")
    problems: list[str] = []
    logins = [_login(node, user, where, problems) for node in nodes]
    refuse(problems)
    addresses = _addresses(nodes, network, where)
    places = [(login.get("hostname"), login.get("port")) for login in logins]
    refuse(
        f"{where}two nodes have the login {place[0]}:{place[1]}"
        for place in dict.fromkeys(places)
        if places.count(place) > 1
    )
    return tuple(
        NodeSpec(
            host=str(login.get("hostname")),
            nproc=slots,
            user=login.get("username"),
            port=int(login.get("port", "22")),
            address=address,
        )
        for login, address in zip(logins, addresses, strict=True)
    )


def _tag(element: Element) -> str:
    """Its name without the namespace, which differs between versions and sites."""
    return element.tag.rpartition("}")[2]


def _under(element: Element, *path: str) -> list[Element]:
    found = [element]
    for name in path:
        found = [child for one in found for child in one if _tag(child) == name]
    return found


def _name(node: Element) -> str:
    return node.get("client_id", "a node without a name")


def _login(node: Element, user: str | None, where: str, problems: list[str]) -> Mapping[str, str]:
    """The login of whoever asks; what is wrong is added to `problems`."""
    logins = [login.attrib for login in _under(node, "services", "login") if login.get("hostname")]
    users = list(dict.fromkeys(login.get("username", "") for login in logins))
    wanted = user or (getpass.getuser() if getpass.getuser() in users else None)
    fits = [login for login in logins if wanted in (None, login.get("username"))]
    port = fits[0].get("port", "22") if fits else "22"
    if not logins:
        problems.append(f"{where}{_name(node)} has no login: is the experiment ready?")
    elif not fits:
        problems.append(f"{where}{_name(node)} has no login for {user}; it has {', '.join(users)}")
    elif wanted is None and len(users) > 1:
        problems.append(
            f"{where}{_name(node)} has several logins; choose: --user {' | '.join(users)}"
        )
    elif not re.fullmatch(r"\d{1,5}", port, re.ASCII) or not 1 <= int(port) <= 65535:
        problems.append(f"{where}{_name(node)} has the port {port!r}, which is none")
    return fits[0] if fits else {}


def _addresses(nodes: Sequence[Element], network: str | None, where: str) -> list[str | None]:
    """Each node's address on the one network that all of them are on."""
    networks: dict[str, list[str]] = {}
    for node in nodes:
        for address in _under(node, "interface", "ip"):
            net = _network(address)
            if net is not None and address.get("type", "ipv4") == "ipv4":
                networks.setdefault(net, []).append(address.get("address", ""))
    common = {net: found for net, found in networks.items() if len(set(found)) == len(nodes)}
    if network is not None:
        wanted = ipaddress.IPv4Network(network)
        common = {
            net: found
            for net, found in common.items()
            if all(ipaddress.IPv4Address(one) in wanted for one in found)
        }
    if len(common) > 1:
        raise UsageError(
            f"{where}all nodes are on {' and '.join(common)}; choose one with --network"
        )
    if common:
        (found,) = common.values()
        return [*found]
    if len(nodes) == 1:
        return [None]
    has = (
        "; ".join(f"{net}: {', '.join(found)}" for net, found in networks.items()) or "none at all"
    )
    raise UsageError(
        f"{where}its {len(nodes)} nodes share no network{f' in {network}' if network else ''} "
        f"(addresses: {has}); add all of them to one LAN"
    )


def _network(address: Element) -> str | None:
    try:
        return str(
            ipaddress.IPv4Network(
                f"{address.get('address')}/{address.get('netmask', '255.255.255.0')}", strict=False
            )
        )
    except ValueError:
        return None
