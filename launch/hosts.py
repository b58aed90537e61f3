"""Which machines, in which order: from a hosts file, a CloudLab manifest, or names.

One entry is `[user@]host[:port] [slots=N|gpu] [address=10.10.1.1]`. Host and port may have
ranges, node[0-3] or :[60000-60003]. The order in which they are written decides who is node 0.
"""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from ClusterShell.NodeSet import NodeSet, NodeSetException

from configs.errors import UsageError, refuse
from configs.launching import MAX_NODES, Slots
from launch import cloudlab
from launch.spec import NodeSpec

HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)
USER = re.compile(r"[A-Za-z0-9._+][A-Za-z0-9._+-]*", re.ASCII)
# What NodeSet may be given: it would read more into other characters.
FOLDED = re.compile(r"[A-Za-z0-9._\[\],-]*", re.ASCII)
RANGES = re.compile(r"\[([^\[\]]*)\]")
EXAMPLE = "write ranges as in node[0-3] or node[00-15,20]"
FILE_BYTES = 10_000_000


def read(
    hosts: str, slots: Slots, *, user: str | None = None, network: str | None = None
) -> tuple[NodeSpec, ...]:
    """The nodes of a file, or those named by `hosts` itself where there is no such file.

    Raises:
        UsageError: a line for everything that is wrong, with its place.
    """
    path = Path(hosts)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # no name of a file at all
        is_file = False
    if not is_file:
        if "/" in hosts or hosts.endswith((".txt", ".xml")):
            raise UsageError(f"--hosts {hosts!r}: no such file")
        return parse([("--hosts: ", hosts)], slots)
    if path.stat().st_size > FILE_BYTES:
        raise UsageError(f"--hosts {hosts}: larger than {FILE_BYTES} bytes: not a hosts file")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--hosts {hosts}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--hosts {hosts}: not a text file") from None
    if text.lstrip().startswith("<"):
        return _checked(cloudlab.read(text, slots, user=user, network=network, where=f"{hosts}: "))
    lines = enumerate(text.split("\n"), start=1)
    return parse([(f"{hosts}:{number}: ", line.partition("#")[0]) for number, line in lines], slots)


def parse(lines: Sequence[tuple[str, str]], slots: Slots) -> tuple[NodeSpec, ...]:
    """The nodes of `lines`, each with what to say of its place before an error.

    Raises:
        UsageError: a line for everything that is wrong.
    """
    problems: list[str] = []
    found: dict[tuple[str | None, str, int | None], tuple[str, NodeSpec]] = {}
    addresses: dict[str, str] = {}
    for where, line in lines:
        try:
            specs = list(_entry(line, slots))
        except UsageError as error:
            problems += [f"{where}{problem}" for problem in str(error).splitlines()]
            continue
        for spec in specs:
            key = (spec.user, spec.host, spec.port)
            if key in found:
                problems.append(
                    f"{where}{spec.name} is there already ({found[key][0].strip(': ')})"
                )
            if spec.address is not None and spec.address in addresses:
                problems.append(
                    f"{where}address {spec.address} is {addresses[spec.address]}'s already"
                )
            found.setdefault(key, (where, spec))
            addresses.setdefault(spec.address or "", spec.name)
        if len(found) > MAX_NODES:
            raise UsageError(f"{where}more than {MAX_NODES} nodes")
    if not found and not problems:
        place = lines[0][0].rstrip(": ").rpartition(":")[0] or "--hosts"
        problems.append(f"{place}: no hosts in it; write one per line, such as me@node0 slots=1")
    refuse(problems)
    return tuple(spec for _, spec in found.values())


def _entry(line: str, slots: Slots) -> Iterator[NodeSpec]:
    """The nodes of one line."""
    if any(ord(character) < 32 and character not in "\t\r" for character in line):
        raise UsageError(f"control characters in {line!r}")
    places, *settings = line.split() or [""]
    values = dict(_settings(settings))
    wanted = _slots(values["slots"]) if "slots" in values else slots
    specs = [spec for term in _terms(places) for spec in _term(term, wanted)]
    if "address" in values:
        if len(specs) != 1:
            raise UsageError(
                f"address={values['address']} is of one node, but this is {len(specs)}"
            )
        specs = [replace(specs[0], address=_address(values["address"]))]
    yield from specs


def _settings(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        name, _, value = word.partition("=")
        if name not in ("slots", "address"):
            raise UsageError(f"unknown {word!r}; known: slots=N, address=A")
        yield name, value


def _terms(places: str) -> Iterator[str]:
    """What commas outside of brackets separate, in the order it was written."""
    depth, term = 0, ""
    for character in places:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            if not term:
                raise UsageError(f"{places!r}: two commas, or one at the beginning")
            yield term
            term = ""
        else:
            term += character
    if term:
        yield term


def _term(term: str, slots: Slots) -> Iterator[NodeSpec]:
    user, at, place = term.rpartition("@")
    if at and not USER.fullmatch(user):
        raise UsageError(f"{term!r}: {user!r} is no user's name")
    host, colon, port = place.partition(":")
    hosts = _expanded(host)
    ports = [_port(text) for text in _expanded(port)] if colon else [None]
    if len(hosts) * len(ports) > MAX_NODES:
        raise UsageError(f"{term!r} is more than {MAX_NODES} nodes")
    for name, number in product(hosts, ports):
        if not HOST.fullmatch(name):
            raise UsageError(f"{term!r}: {name!r} is no host's name")
        yield NodeSpec(name, slots, user=user or None, port=number)


def _expanded(folded: str) -> list[str]:
    """Every name that ranges stand for, in their order.

    Raises:
        UsageError: it is not a name with ranges, or too many of them.
    """
    if not folded or not FOLDED.fullmatch(folded):
        raise UsageError(f"{folded!r} is no host's name; {EXAMPLE}")
    count = 1
    for ranges in RANGES.findall(folded):
        count *= sum(map(_length, ranges.split(",")))
    if count > MAX_NODES:
        raise UsageError(f"{folded!r} is more than {MAX_NODES} nodes")
    if "[" not in folded and "]" not in folded:
        return [folded]
    if folded.startswith("["):  # a port's: NodeSet wants a name before
        return [name.removeprefix("n") for name in _expanded(f"n{folded}")]
    if RANGES.sub("", folded).count("[") + RANGES.sub("", folded).count("]"):
        raise UsageError(f"{folded!r}: brackets do not match; {EXAMPLE}")
    # NodeSet sorts: each part of a range is expanded by itself, so that [3,1] stays so
    head, inside, tail = re.split(r"\[([^\[\]]*)\]", folded, maxsplit=1)
    try:
        return [
            name
            for part in inside.split(",")
            for first in NodeSet(f"{head or 'n'}[{part}]", resolver=False)
            for name in (_expanded(first + tail) if tail else [first])
        ]
    except (NodeSetException, TypeError) as error:
        raise UsageError(f"{folded!r}: {error}; {EXAMPLE}") from None


def _length(part: str) -> int:
    """How many names one range stands for, without making them."""
    match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?(?:/\d+)?", part)
    if match is None:
        raise UsageError(f"{part!r} is no range; {EXAMPLE}")
    return max(1, int(match[2] or match[1]) - int(match[1]) + 1)


def _port(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or not 1 <= int(text) <= 65535:
        raise UsageError(f"port {text!r} is not between 1 and 65535")
    return int(text)


def _slots(text: str) -> Slots:
    if text == "gpu":
        return "gpu"
    if not re.fullmatch(r"\d{1,4}", text, re.ASCII) or int(text) < 1:
        raise UsageError(f"slots={text}: use a number from 1 up, or gpu")
    return int(text)


def _address(text: str) -> str:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        raise UsageError(f"address={text!r} is not an IPv4 address such as 10.10.1.1") from None
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        raise UsageError(f"address={text}: other nodes cannot reach that one")
    return str(address)


def _checked(specs: Sequence[NodeSpec]) -> tuple[NodeSpec, ...]:
    """What a manifest gave passes the same tests as what a person writes."""
    refuse(
        f"{spec.name!r} is no login that could be used"
        for spec in specs
        if not HOST.fullmatch(spec.host) or (spec.user and not USER.fullmatch(spec.user))
    )
    return tuple(specs)
