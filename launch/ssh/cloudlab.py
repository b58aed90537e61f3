"""Read a CloudLab manifest: the nodes, and the login of each."""

import re
import xml.etree.ElementTree as ET
from typing import Literal

from launch.spec import NodeSpec
from launch.ssh.host_validation import checked, port, quoted, word
from muster.errors import UsageError, refuse

DISK = "emulab-blockstore"  # a network disk, which a manifest lists among the nodes
ASK = "give the manifest of a running experiment"


Logins = dict[str, NodeSpec]  # by user


def read_manifest(
    text: str, default_slots: int | Literal["gpu"], where: str, *, user: str | None, me: str | None
) -> tuple[NodeSpec, ...]:
    """The nodes of a GENI RSpec manifest, in its order.

    The login is `user`; without one it is `me` if that is a member of the project, else the only
    member. The training network is chosen by asking the nodes, as for all other nodes.

    Raises:
        UsageError: it is not a manifest, or does not say where to log in.
    """
    computers = [(_place(one, where), one) for one in _computers(_root(text, where))]
    problems: list[str] = []
    nodes = [(place, _logins(one, default_slots, place, problems)) for place, one in computers]
    refuse(problems)
    known = sorted({name for _, logins in nodes for name in logins})
    member = user or (me if me and me in known else "")
    if not member and len(known) > 1:
        raise UsageError(
            f"{where}: several people can log in: {', '.join(known)}; choose with --user"
        )
    member = member or "".join(known)
    refuse(
        f"{place}: {quoted(member)} cannot log in, only {', '.join(sorted(logins))} can; choose "
        "with --user"
        for place, logins in nodes
        if member not in logins
    )
    found = [(place, logins[member]) for place, logins in nodes]
    return checked(found, [], f"{where}: no nodes; {ASK}")


def _root(text: str, where: str) -> ET.Element:
    """The root element.

    Raises:
        UsageError: `text` is not XML, not such a document, or declares entities.
    """
    # searched for in the text: a parser would expand entities before it reports them
    if found := re.search(r"<!(DOCTYPE|ENTITY)", text):
        line = text.count("\n", 0, found.start()) + 1
        raise UsageError(f"{where}:{line}: {found[0]!r} has no place in a manifest; {ASK}")
    document = text.lstrip()  # its declaration may stand at the very beginning only
    parser = ET.XMLParser(encoding="utf-8")  # whatever encoding the document declares
    try:
        parser.feed(document.encode("utf-8", "backslashreplace"))
        root: ET.Element = parser.close()
    except ET.ParseError as error:
        line = error.position[0] + text.count("\n", 0, len(text) - len(document))
        raise UsageError(f"{where}:{line}: not XML: {error.msg.split(':')[0]}; {ASK}") from None
    kind = root.get("type")
    if _name(root) != "rspec":
        raise UsageError(f"{where}: begins with {quoted(_name(root))}, not with 'rspec'; {ASK}")
    if kind not in ("manifest", "request"):  # manifests of either type exist
        raise UsageError(f"{where}: an rspec of type {quoted(str(kind))}, not 'manifest'; {ASK}")
    return root


def _name(element: ET.Element) -> str:
    """The name without its namespace, since several are in use."""
    return element.tag.rpartition("}")[2]


def _computers(root: ET.Element) -> list[ET.Element]:
    return [
        node
        for node in root.findall("{*}node")
        if all(kind.get("name") != DISK for kind in node.findall("{*}sliver_type"))
    ]


def _place(element: ET.Element, file: str) -> str:
    return f"{file}: node {quoted(element.get('client_id', ''))}"


def _logins(
    element: ET.Element, slots: int | Literal["gpu"], where: str, problems: list[str]
) -> Logins:
    """Each member's login to a node; what is wrong is added to `problems`."""
    logins: Logins = {}
    members = element.findall("{*}services/{*}login")
    for login in members:
        user, host, at = (login.get(key, "") for key in ("username", "hostname", "port"))
        try:
            node = NodeSpec(word("host", host), slots, word("user", user), port(at) if at else None)
            logins.setdefault(user, node)
        except ValueError as error:
            problems.append(f"{where}: {error}")
    if not members:
        problems.append(f"{where}: nobody can log in there; {ASK}")
    return logins
