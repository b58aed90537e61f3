"""Every node is looked at, and every pair of them is tried; nothing heavier than Python runs."""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from configs.plugins import REPOSITORY
from launch.checks import network_checks, node_checks
from launch.checks.clock import Ping, skew_s
from launch.checks.findings import Findings, Node, Reach, Row
from launch.checks.survey import Survey
from launch.checks.transports import Transport
from launch.nodes import network_choice, node_facts, route
from launch.nodes.network_choice import Choice, Routes
from launch.slurm.partitions import ask
from launch.ssh import node_report
from launch.ssh.node_report import Probe
from muster.errors import MusterError

# srun may wait for nodes, and ssh for names, before the first answer; and a machine may be busy.
ANSWER_S = 90.0
CONNECT_S = 4.0
PINGS = 3
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Examination:
    """The table's rows."""

    rows: Sequence[Row]

    @property
    def problems(self) -> list[str]:
        """A line for each row that fails: a run would, too."""
        return [row.line for row in self.rows if row.verdict == "FAIL"]

    @property
    def warnings(self) -> list[str]:
        return [row.line for row in self.rows if row.verdict == "warn"]


def quick(
    transport: Transport,
    *,
    wanted: str | None = None,
    addresses: Sequence[str | None] = (),
    hosts: Sequence[str] = (),
    master_port: int | None = None,
    request: Mapping[str, Any] | None = None,
    probes: Sequence[Probe] | None = None,
    chosen: Choice | None = None,
) -> Examination:
    """Look at all nodes; those that have been asked already bring their `probes`, and what was
    `chosen` by them.

    `wanted` is --network, `addresses` and `hosts` are what one gave for the
    nodes, `request` what they are asked where there are no probes.
    """
    with Survey(transport) as survey:
        if probes is None:
            assert request is not None
            answers = survey.ask(
                ANSWER_S, do="describe", request=request, source=_source(node_facts.__file__)
            )
            found = {
                index: one.reply["probe"] for index, one in answers.items() if "probe" in one.reply
            }
        else:
            found = dict(enumerate(probes))
        silent = [
            _named(survey.silence(i), hosts, i) for i in range(transport.count) if i not in found
        ]
        answered = sorted(found)
        addresses = _of(addresses, answered)
        findings = _look(
            survey, transport, found, answered, wanted, addresses, hosts, master_port, chosen
        )
    return examination(findings, silent)


def examination(findings: Findings, silent: Sequence[str] = ()) -> Examination:
    """The rows that a case makes; where nobody answers there is but one."""
    findings = Findings(**{**vars(findings), "silent": (*findings.silent, *silent)})
    if not findings.nodes:
        return Examination([network_checks.reach(findings)])
    checks = (*network_checks.FIRST, *node_checks.ROWS, *network_checks.REST)
    return Examination([check(findings) for check in checks])


def request_here(python: str) -> dict[str, Any]:
    """What is asked of nodes that run this checkout with this Python."""
    return {**node_report.request(None, None, REPOSITORY), "python": python}


@contextmanager
def proof() -> Iterator[Path]:
    """A file in this checkout that a node sees only if it sees the checkout."""
    path = REPOSITORY / "logs" / f".shared-{os.urandom(8).hex()}"
    path.parent.mkdir(exist_ok=True)
    path.touch()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _look(
    survey: Survey,
    transport: Transport,
    probes: Mapping[int, Probe],
    answered: Sequence[int],
    wanted: str | None,
    addresses: Sequence[str | None],
    hosts: Sequence[str],
    master_port: int | None,
    chosen: Choice | None,
) -> Findings:
    """All that takes more than one answer of one node."""
    own = [probes[index] for index in answered]
    names = _names(transport, own, _of(hosts, answered))
    if transport.launcher == "slurm" and not any(addresses):
        addresses = slurm_addresses(own)
    trouble = ""
    try:
        routes = partial(_routes, survey, answered)
        named = [one or "" for one in _of(hosts, answered)]
        chosen = chosen or _choose(transport, own, named, addresses, wanted, routes)
    except MusterError as error:
        trouble = str(error)
    pings = [survey.ask(ANSWER_S, answered, do="time") for _ in range(PINGS)] if answered else []
    listening, reached = _try_pairs(survey, answered, chosen, master_port)
    called = dict(zip(answered, names, strict=True))
    return Findings(
        launcher=transport.launcher,
        nodes=tuple(
            Node(
                name=name,
                probe=one,
                skew_s=skew_s([_ping(ping[index]) for ping in pings if index in ping]),
                busy_ports=listening.get(index, {}).get("busy_ports", ()),
                links=listening.get(index, {}).get("links", {}),
                reached={
                    called[int(other)]: Reach(*way_there)
                    for other, way_there in reached.get(index, {}).items()
                },
            )
            for index, name, one in zip(answered, names, own, strict=True)
        ),
        code=node_facts.code_hash(str(REPOSITORY)),
        master_port=master_port,
        chosen=chosen,
        trouble=trouble,
    )


def _try_pairs(
    survey: Survey, answered: Sequence[int], chosen: Choice | None, master_port: int | None
) -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]]:
    """What each said when it was to listen, and how it reached the others."""
    if chosen is None:
        return {}, {}
    addresses = {str(index): one for index, one in zip(answered, chosen.addresses, strict=True)}
    ports = [master_port] if master_port is not None else []
    reply = survey.ask(ANSWER_S, answered, do="listen", addresses=addresses, ports=ports)
    listening = {index: one.reply for index, one in reply.items() if "port" in one.reply}
    servers = {str(index): (addresses[str(index)], one["port"]) for index, one in listening.items()}
    tried = survey.ask(ANSWER_S, answered, do="connect", servers=servers, patience_s=CONNECT_S)
    return listening, {index: one.reply.get("reached", {}) for index, one in tried.items()}


def _choose(
    transport: Transport,
    probes: Sequence[Probe],
    hosts: Sequence[str],
    addresses: Sequence[str | None],
    wanted: str | None,
    routes: Routes,
) -> Choice:
    if transport.launcher == "local":
        return Choice("127.0.0.0/8", (LOOPBACK,) * len(probes))
    return network_choice.choose(probes, hosts, addresses, wanted, routes)


def _routes(survey: Survey, answered: Sequence[int], to: Sequence[str]) -> list[Mapping[str, str]]:
    """The own address from which each node sends to each of those in `to`."""
    source = _source(route.__file__)
    reply = survey.ask(ANSWER_S, answered, do="describe", request={"to": to}, source=source)
    return [reply[index].reply.get("probe", {}) if index in reply else {} for index in answered]


def slurm_addresses(probes: Sequence[Probe]) -> list[str | None]:
    """The addresses by which Slurm itself reaches these nodes."""
    hosts = [str(one["host"]).partition(".")[0] for one in probes]
    shown = ask(["scontrol", "show", "node", "--oneliner", ",".join(hosts)], os.environ)
    found: dict[str, str] = {}
    for line in shown.stdout.splitlines():
        pairs = dict(word.partition("=")[::2] for word in line.split())
        try:
            found[pairs.get("NodeHostName", "")] = socket.gethostbyname(pairs["NodeAddr"])
        except (OSError, KeyError):
            continue
    own = [[interface["address"] for interface in one["interfaces"]] for one in probes]
    addresses = [found.get(host) for host in hosts]
    # Slurm may reach a node at an address that the node does not know itself.
    return [one if one in has else None for one, has in zip(addresses, own, strict=True)]


def _names(transport: Transport, probes: Sequence[Probe], hosts: Sequence[str | None]) -> list[str]:
    """What to call the nodes: their own host names, where no two are the same."""
    if transport.launcher == "local":
        return [f"node{index}" for index in range(len(probes))]
    names = [str(one["host"]).partition(".")[0] for one in probes]
    if len(set(names)) == len(names):
        return names
    return [host or f"node{index}" for index, host in enumerate(hosts)]


def _named(line: str, hosts: Sequence[str], index: int) -> str:
    who = f"node {index}: "
    return f"{hosts[index]}: {line.removeprefix(who)}" if hosts and line.startswith(who) else line


def _ping(answer: Any) -> Ping:
    return Ping(answer.asked_unix_s, answer.heard_unix_s, answer.reply["time_unix_s"])


def _of(values: Sequence[Any], answered: Sequence[int]) -> list[Any]:
    return [values[index] if index < len(values) else None for index in answered]


def _source(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
