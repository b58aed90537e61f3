"""Read a CloudLab manifest: the nodes, and the login of each."""

import xml.etree.ElementTree as ET

from configs.settings.launch import WorkersPerNode
from launch.spec import NodeSpec
from launch.ssh.host_validation import parse_port, parse_word, quoted, valid_nodes
from muster.errors import UsageError, refuse
from muster.terminal import TIP

DISK = "emulab-blockstore"  # a network disk, which a manifest lists among the nodes
ASK = "give the manifest of a running experiment"

Logins = dict[str, NodeSpec]  # by user


def read_manifest(
    text: str, default_slots: WorkersPerNode, where: str, *, user: str | None, me: str | None
) -> tuple[NodeSpec, ...]:
    """The nodes of a GENI RSpec manifest, in its order.

    The user name is `user`. Without `user`, it is `me` if that is a member of the project, or else
    the only member. The network for the gradients is not read here: these nodes are asked for their
    networks, like all others.

    Raises:
        UsageError: `text` is not a manifest, or does not say where to log in.
    """
    problems: list[str] = []
    nodes: list[tuple[str, Logins]] = []
    for element in _root(text, where).findall("{*}node"):
        if all(kind.get("name") != DISK for kind in element.findall("{*}sliver_type")):
            place = f"{where}: node {quoted(element.get('client_id', ''))}"
            nodes.append((place, _logins(element, default_slots, place, problems)))
    refuse(problems)
    members = sorted({name for _, logins in nodes for name in logins})
    member = user or (me if me and me in members else "")
    if not member and len(members) > 1:
        raise UsageError(
            f"{where}: several users can log in: {', '.join(members)}\ntip: choose one with --user"
        )
    member = member or "".join(members)
    refuse(
        f"{place}: {quoted(member)} cannot log in, only {', '.join(sorted(logins))} can"
        "\ntip: choose one with --user"
        for place, logins in nodes
        if member not in logins
    )
    chosen = [(place, logins[member]) for place, logins in nodes]
    return valid_nodes(chosen, [], f"{where}: no nodes{TIP}{ASK}")


def _root(text: str, where: str) -> ET.Element:
    """The element that contains all others.

    Raises:
        UsageError: `text` is not XML, or not a manifest.
    """
    try:
        root = ET.fromstring(text.strip())  # nothing may stand before an XML declaration
    except (ET.ParseError, ValueError) as error:
        raise UsageError(f"{where}: not XML: {error}{TIP}{ASK}") from None
    # the name without its namespace, since several namespaces are in use
    kind = f"{root.tag.rpartition('}')[2]} of type {root.get('type')}"
    if kind not in ("rspec of type manifest", "rspec of type request"):  # CloudLab writes both
        raise UsageError(
            f"{where}: this is {quoted(kind)}, not an rspec of type manifest{TIP}{ASK}"
        )
    return root


def _logins(element: ET.Element, slots: WorkersPerNode, where: str, problems: list[str]) -> Logins:
    """Each member's login to a node; each fault adds a line to `problems`."""
    logins: Logins = {}
    members = element.findall("{*}services/{*}login")
    for login in members:
        user, host, port = (login.get(key, "") for key in ("username", "hostname", "port"))
        try:
            node = NodeSpec(
                parse_word("host", host),
                slots,
                parse_word("user", user),
                parse_port(port) if port else None,
            )
            logins.setdefault(user, node)
        except ValueError as error:
            problems.append(f"{where}: {error}")
    if not members:
        problems.append(f"{where}: no user can log in there{TIP}{ASK}")
    return logins
