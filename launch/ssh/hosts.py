"""Read hosts as people write them; the nodes keep the order, and the first has rank 0."""

import ipaddress
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ClusterShell.RangeSet import RangeSet, RangeSetParseError

from launch.spec import NodeSpec
from launch.ssh import cloudlab
from launch.ssh.host_validation import (
    LONGEST_HOST,
    MOST_NODES,
    Gathered,
    Slots,
    address_problem,
    host_problem,
    port_problem,
    quoted,
    user_problem,
)

MOST_BYTES = 10_000_000
OPTIONS = ("address", "slots")
EXAMPLE = "write lines as in user@node[0-3]:22 slots=4"
RANGES = "write ranges as in node[0-3] or node[00-15,20]"
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,18}))?)?")


def read_hosts(
    path: Path,
    default_slots: Slots,
    *,
    user: str | None = None,
    me: str | None = None,
    network: str | None = None,
) -> tuple[NodeSpec, ...]:
    """The nodes of a hosts file, or of a CloudLab manifest.

    A line is `[user@]host[:port] [slots=N|slots=gpu] [address=IP]`, where host and port may have
    ranges and several hosts stand between commas; `#` begins a comment. IPv6 with a port is
    `[fd00::1]:22`. `user` logs in where a line
    names nobody; the other arguments choose in a manifest, see `cloudlab.read_manifest`.

    Raises:
        UsageError: the file cannot be read, or something in it is wrong; one line for each.
    """
    gathered = Gathered()
    text = _text_of(path, gathered)
    if text.lstrip().startswith("<"):
        return cloudlab.read_manifest(
            text, default_slots, str(path), user=user, me=me, network=network
        )
    user = _checked(user, str(path), gathered)
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{path}:{number}"
        words = re.split(r"[ \t]+", line.partition("#")[0].strip(" \t\r"))
        if words != [""]:
            slots, address = _options(words[1:], default_slots, where, gathered)
            _gather(words[0], NodeSpec("", slots, user, None, address), where, gathered)
    return gathered.nodes(str(path), f"no hosts; {EXAMPLE}")


def parse_hosts(
    words: Sequence[str], default_slots: Slots, where: str, *, user: str | None = None
) -> tuple[NodeSpec, ...]:
    """The nodes named on a command line, as in `node[0-3],user@other:2222`.

    Raises:
        UsageError: something in `words` is wrong; one line for each.
    """
    gathered = Gathered()
    user = _checked(user, where, gathered)
    for word in words:
        _gather(word, NodeSpec("", default_slots, user), where, gathered)
    return gathered.nodes(where, "no hosts; write them as in user@node[0-3]:22,user@other")


def _text_of(path: Path, gathered: Gathered) -> str:
    """The text of the file; where it cannot be read, "" and a gathered problem."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        gathered.wrong(str(path), f"{error.strerror}; give a file that can be read")
        return ""
    except ValueError:  # a NUL in its name
        gathered.wrong(quoted(str(path)), "not the name of a file; give one that can be read")
        return ""
    if len(raw) > MOST_BYTES:
        gathered.wrong(str(path), f"longer than {MOST_BYTES} bytes; give a hosts file or manifest")
        return ""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        gathered.wrong(f"{path}:{line}", "not UTF-8; give a text file in UTF-8")
        return ""


def _checked(user: str | None, where: str, gathered: Gathered) -> str | None:
    problem = None if user is None else user_problem(user)
    if problem is None:
        return user
    gathered.wrong(where, problem)
    return None


def _options(
    words: Sequence[str], default_slots: Slots, where: str, gathered: Gathered
) -> tuple[Slots, str | None]:
    """The options of a line: slots and address."""
    raw: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            gathered.wrong(where, f"{quoted(word)} is no option; {EXAMPLE}, one entry per line")
        elif name not in OPTIONS:
            gathered.wrong(where, f"unknown option {quoted(name)}; known: {', '.join(OPTIONS)}")
        elif name in raw:
            gathered.wrong(where, f"{name} is given twice; give it once")
        raw.setdefault(name, value)
    slots, address = raw.get("slots"), raw.get("address")
    if address is not None and (problem := address_problem(address)):
        gathered.wrong(where, problem)
        address = None
    address = address and _canonical(address)
    if slots is None:
        return default_slots, address
    if re.fullmatch(r"[0-9]{1,4}", slots) and int(slots) >= 1:
        return int(slots), address
    if slots != "gpu":
        gathered.wrong(where, f"slots is {quoted(slots)}; give a number from 1 to 9999, or gpu")
    return "gpu", address


def _gather(hosts: str, like: NodeSpec, where: str, gathered: Gathered) -> None:
    """Add the nodes that `hosts` means; what it leaves open is as in `like`."""
    terms = _terms(hosts)
    for term in terms:
        try:
            logins = list(_logins(term, gathered.room))
        except ValueError as error:
            gathered.wrong(where, str(error))
            continue
        if like.address and len(terms) * len(logins) > 1:
            gathered.wrong(
                where, f"one address, but {quoted(hosts)} is several nodes; split the line"
            )
            return
        for user, host, port in logins:
            user = like.user if user is None else user
            gathered.add(where, NodeSpec(host, like.nproc, user, port, like.address))


def _terms(hosts: str) -> list[str]:
    """`hosts` cut at each comma outside brackets; ClusterShell's NodeSet would lose the order."""
    commas = [found.start() for found in re.finditer(r"\[[^\]]*|,", hosts) if found[0] == ","]
    return [hosts[a + 1 : b] for a, b in itertools.pairwise([-1, *commas, len(hosts)])]


def _logins(term: str, room: int) -> Iterator[tuple[str | None, str, int | None]]:
    """User, host and port of each node of a term without commas.

    Raises:
        ValueError: with the problem as its text.
    """
    user, at, hosts = term.rpartition("@") if term.count("@") == 1 else ("", "", term)
    if at and (problem := user_problem(user)):
        raise ValueError(problem)
    for host, colon, port in _places(hosts, room):
        if problem := host_problem(host) or (port_problem(port) if colon else None):
            raise ValueError(problem)
        yield user if at else None, host, int(port) if colon else None


def _places(hosts: str, room: int) -> Iterator[tuple[str, str, str]]:
    """Host, colon and port of each; IPv6 is in brackets where a port follows, else it may be."""
    if bracketed := re.fullmatch(r"\[([^\[\]]*:[^\[\]]*)\](?:(:)(.*))?", hosts, re.DOTALL):
        yield _canonical(bracketed[1]), bracketed[2] or "", bracketed[3] or ""
        return
    for login in _expanded(hosts, room):
        is_ipv6 = login.count(":") > 1 and re.match(r"[0-9A-Fa-f:.]+(%|$)", login)
        yield (_canonical(login), "", "") if is_ipv6 else login.partition(":")


def _canonical(address: str) -> str:
    """`address` as the kernel writes it, so that it can be compared; other text is unchanged."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address


def _expanded(text: str, room: int) -> list[str]:
    """Every name that `text` means: each range is replaced by each of its numbers, in their order.

    Raises:
        ValueError: with the problem as its text.
    """
    pieces = re.split(r"\[([^\[\]]*)\]", text)
    literals, ranges = pieces[::2], [body.split(",") for body in pieces[1::2]]
    if any("[" in literal or "]" in literal for literal in literals):
        raise ValueError(f"brackets do not match in {quoted(text)}; {RANGES}")
    if sum(map(len, literals)) + len(ranges) > LONGEST_HOST:
        raise ValueError(f"{quoted(text)} is too long for a host; {EXAMPLE}")
    count = 1
    for body in ranges:
        count *= sum(_length(item, text) for item in body)
        if count > max(room, 1):  # checked before a list of that length is made
            raise ValueError(f"{quoted(text)} makes more than {MOST_NODES} nodes; give fewer")
    choices = [[literals[0]]]
    for body, literal in zip(ranges, literals[1:], strict=True):
        choices += [[number for item in body for number in _numbers(item, text)], [literal]]
    return ["".join(choice) for choice in itertools.product(*choices)]


def _length(item: str, text: str) -> int:
    """How many numbers `item` means; they are not made for that."""
    found = _RANGE.fullmatch(item)
    if found is None:
        raise _bad_range(item, text)
    first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
    if last < first or step < 1:
        raise _bad_range(item, text)
    return (last - first) // step + 1


def _numbers(item: str, text: str) -> list[str]:
    try:
        return list(RangeSet(item).striter())
    except RangeSetParseError:  # ends that are padded to different lengths
        raise _bad_range(item, text) from None


def _bad_range(item: str, text: str) -> ValueError:
    return ValueError(f"bad range {quoted(item)} in {quoted(text)}; {RANGES}")
