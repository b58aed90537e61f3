"""Read hosts as people write them; the nodes stay in order, and the first has rank 0."""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ClusterShell.RangeSet import RangeSet, RangeSetParseError

from configs.raw import text_of
from configs.settings.launch import WorkersPerNode
from launch.spec import NodeSpec
from launch.ssh import cloudlab
from launch.ssh.host_validation import (
    MOST_NODES,
    parse_address,
    parse_port,
    parse_word,
    quoted,
    valid_nodes,
)
from muster.errors import UsageError
from muster.terminal import TIP

LINE_OPTIONS = ("address", "slots")
EXAMPLE = "write lines as in user@node[0-3]:22 slots=4"
RANGES = "write ranges as in node[0-3] or node[00-15,20]"
# Open MPI's names for a node's maximum number of workers; `slots` is the number that starts.
MOST_SLOTS = ("max_slots", "max-slots")
MOST_BYTES = 4_000_000  # of a hosts file or a manifest
LOWEST_PORT = 22  # no sshd listens at a lower port
MAX_CHARACTERS = 400  # of the text for one host, with its ranges
IPV6 = re.compile(r"(?:[^@]*@)?\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\](?::.*)?")
SLOTS = re.compile(r"[1-9][0-9]{0,3}")
RANGE = re.compile(r"(?P<first>[0-9]{1,9})(-(?P<last>[0-9]{1,9})(/(?P<step>0*[1-9][0-9]{0,8}))?)?")


def read_hosts(
    path: Path, default_slots: WorkersPerNode, *, user: str | None = None, me: str | None = None
) -> tuple[NodeSpec, ...]:
    """The nodes of a hosts file, or of a CloudLab manifest.

    A line is `[user@]host[:port] [slots=N|slots=gpu] [address=IP]`. Host and port may contain
    ranges, and commas may separate several hosts; `#` begins a comment. An IPv6 address with a port
    is written as `[fd00::1]:22`. `user` is the user name for lines without one; for `me`, see
    `cloudlab.read_manifest`.

    Raises:
        UsageError: the file cannot be read, or something in it is wrong; one line for each problem.
    """
    try:
        text = text_of(path, MOST_BYTES)
    except (OSError, ValueError) as error:  # ValueError: for example a NUL in its name
        why = error.strerror if isinstance(error, OSError) else error
        name = repr(str(path)) if os.path.exists(path) else quoted(str(path))  # noqa: PTH110 (a NUL)
        raise UsageError(
            f"--hosts {name}: {why}\ntip: give a file that can be read, or host names"
        ) from None
    if text.lstrip().startswith("<"):
        return cloudlab.read_manifest(text, default_slots, str(path), user=user, me=me)
    lines = {f"{path}:{n}": line.partition("#")[0] for n, line in enumerate(text.split("\n"), 1)}
    return _read(lines, NodeSpec("", default_slots, user), f"{path}: no hosts{TIP}{EXAMPLE}")


def parse_hosts(
    words: Sequence[str], default_slots: WorkersPerNode, where: str, *, user: str | None = None
) -> tuple[NodeSpec, ...]:
    """The nodes named on a command line, as in `node[0-3],user@other:2222`.

    Raises:
        UsageError: something in `words` is wrong; one line for each problem.
    """
    no_nodes = f"{where}: no hosts\ntip: write them as in user@node[0-3]:22,user@other"
    defaults = NodeSpec("", default_slots, user)
    return _read({where: ",".join(words)}, defaults, no_nodes)


def _read(lines: dict[str, str], defaults: NodeSpec, no_nodes: str) -> tuple[NodeSpec, ...]:
    """The nodes of all lines; `no_nodes` is the problem to report if there are none."""
    nodes: list[tuple[str, NodeSpec]] = []
    problems = []
    for where, line in lines.items():
        if len(nodes) > MOST_NODES:
            break
        try:
            nodes += [(where, node) for node in _nodes(line.split(), defaults)]
        except ValueError as error:
            problems.append(f"{where}: {error}")
    return valid_nodes(nodes, problems, no_nodes)


def _nodes(words: Sequence[str], defaults: NodeSpec) -> list[NodeSpec]:
    """The nodes of a line."""
    if not words:
        return []
    hosts = words[0]
    template = _with_options(words[1:], defaults)
    nodes = [_node(login, template) for term in _terms(hosts) for login in _logins(term)]
    if template.address and len(nodes) > 1:
        raise ValueError(f"one address, but {quoted(hosts)} is several nodes\ntip: split the line")
    return nodes


def _with_options(words: Sequence[str], node: NodeSpec) -> NodeSpec:
    """`node` with the options of its line, such as slots=4."""
    slots = [word for word in words if word.startswith("slots=")]
    for option in words:
        name, equals, value = option.partition("=")
        if equals and name in MOST_SLOTS:
            if not slots:
                raise ValueError(f"{quoted(option)} starts no workers{TIP}write slots=4")
            if not SLOTS.fullmatch(value):
                raise ValueError(f"{name} is {quoted(value)}\ntip: give a number from 1 to 9999")
            if SLOTS.fullmatch(own := slots[-1][6:]) and int(own) > int(value):
                raise ValueError(f"slots={own} is more than {option}\ntip: give a smaller number")
        elif not equals or name not in LINE_OPTIONS:
            names = " and ".join(LINE_OPTIONS)
            raise ValueError(
                f"unknown option {quoted(option)}{TIP}the options are {names}; {EXAMPLE}"
            )
        elif name == "address":
            node = replace(node, address=str(parse_address(value)))
        elif value == "gpu" or SLOTS.fullmatch(value):
            node = replace(node, nproc=WorkersPerNode.parse(value))
        else:
            raise ValueError(f"slots is {quoted(value)}\ntip: give a number from 1 to 9999, or gpu")
    return node


def _terms(hosts: str) -> list[str]:
    """`hosts` split at each comma outside brackets; ClusterShell's NodeSet would lose the order."""
    commas = [match.start() for match in re.finditer(r"\[[^\]]*|,", hosts) if match[0] == ","]
    bounds = itertools.pairwise([-1, *commas, len(hosts)])
    return [hosts[comma + 1 : next_comma] for comma, next_comma in bounds]


def _logins(term: str) -> list[str]:
    """Every login that a term stands for: each range is expanded to its numbers, in order."""
    if IPV6.fullmatch(term):
        return [term]
    if len(term) > MAX_CHARACTERS:
        raise ValueError(f"{quoted(term)} is too long for a host name{TIP}{EXAMPLE}")
    parts = re.split(r"\[([^\[\]]*)\]", term)  # literals and ranges alternate
    if any("[" in literal or "]" in literal for literal in parts[::2]):
        raise ValueError(f"brackets do not match in {quoted(term)}{TIP}{RANGES}")
    choices = [
        [part]
        if index % 2 == 0
        else [*itertools.chain(*(_numbers(item, term) for item in part.split(",")))]
        for index, part in enumerate(parts)
    ]
    # at most one more than allowed, so that the list cannot become longer
    combinations = [*itertools.islice(itertools.product(*choices), MOST_NODES + 1)]
    if len(combinations) > MOST_NODES:
        raise _too_many(term)
    return ["".join(combination) for combination in combinations]


def _node(login: str, template: NodeSpec) -> NodeSpec:
    """The node with this login; everything else is as in `template`."""
    user, at, place = login.rpartition("@")
    colon = port = ""
    if bracketed := re.fullmatch(r"\[(.*)\](?:(:)(.*))?", place):
        host = bracketed[1]
        colon = bracketed[2] or ""
        port = bracketed[3] or ""
    elif place.count(":") > 1:
        host = place
    else:
        host, colon, port = place.partition(":")
    number = parse_port(port) if colon else None
    if number is not None and number < LOWEST_PORT:
        raise ValueError(f"{quoted(login)}: ssh has no port {port}{TIP}for workers: slots={number}")
    name = parse_word("user", user) if at else template.user and parse_word("user", template.user)
    return replace(template, host=parse_word("host", host), user=name, port=number)


def _too_many(term: str) -> ValueError:
    return ValueError(f"{quoted(term)} stands for more than {MOST_NODES} nodes\ntip: give fewer")


def _numbers(item: str, term: str) -> Iterator[str]:
    """The numbers of a range."""
    match = RANGE.fullmatch(item)
    if match is not None and match["last"]:
        count = int(match["last"]) - int(match["first"])
        if count // int(match["step"] or 1) > MOST_NODES:
            raise _too_many(term)  # before the numbers are generated
    try:
        return iter([*RangeSet(item if match else "").striter()])
    except RangeSetParseError:  # not a range, or its ends are padded to different lengths
        raise ValueError(f"bad range {quoted(item)} in {quoted(term)}{TIP}{RANGES}") from None
