"""Check that nodes answer, share a network and reach each other, and that their clocks agree."""

from collections.abc import Callable, Sequence

from launch.checks.findings import Findings, Row, groups, shortened
from launch.deadlines import CLOCK_SKEW_REPORTED_S
from muster.printable import listed
from muster.terminal import in_one_line

OTHERS_FIRST = "fix the problems in the other rows first"
FIREWALL = "if there is a firewall, allow all TCP traffic between the nodes on {network}"
# The errors of `node_facts.connect`, most of them the kernel's, and what to do about each.
REMEDIES = {
    "no answer": FIREWALL,
    "connection refused": (
        "a firewall rejects it; allow all TCP traffic between the nodes on {network}"
    ),
    "no route to host": "is its link up, and is it on {network}? On that node, run: ip -br addr",
    "network is unreachable": "it has no route to {network}; on that node, run: ip route",
    "stalls": "small packets arrive but large ones do not: set the same MTU throughout {network}",
}


def reach(findings: Findings) -> Row:
    """Whether every node answered."""
    if not findings.silent:
        count = len(findings.nodes)
        return Row(
            "reach", "ok", (f"{findings.means or findings.launcher} works on {count} of {count}",)
        )
    parts = [in_one_line(line).partition("; ") for line in findings.silent]
    causes = shortened(list(dict.fromkeys(cause for cause, _, _ in parts)))
    fixes = dict.fromkeys(fix for _, _, fix in parts if fix)
    return Row("reach", "FAIL", causes, "\n".join(shortened([*fixes])))


def network(findings: Findings) -> Row:
    """Whether an address could be chosen for each node, usually on one network."""
    if findings.chosen is None:
        fix = "choose a network that all nodes are on: --network 10.10.1.0/24"
        return Row("network", "FAIL", tuple(findings.trouble.split("; ")), fix)
    interfaces = groups({node.name: node.interface for node in findings.nodes})
    addresses = listed([f"{node.name} {node.address}" for node in findings.nodes])
    where = findings.chosen.network or "several networks"
    line = f"{where} on {', '.join(interfaces)}: {addresses}"
    others = ", ".join(findings.chosen.others)
    fix = f"other networks, to choose with --network: {others}" if others else ""
    return Row("network", "ok", (line,), fix)


def pairs(findings: Findings) -> Row:
    """Whether data gets from every node to every other node."""
    count = len(findings.nodes)
    wanted = count * (count - 1)
    directions = {
        (node.name, other): connection
        for node in findings.nodes
        for other, connection in node.connections.items()
    }
    failed = {pair: connection.error for pair, connection in directions.items() if connection.error}
    if len(directions) < wanted and not failed:
        untried = [node.name for node in findings.nodes if len(node.connections) < count - 1]
        return Row("every pair", "FAIL", (f"not tried from {listed(untried)}",), OTHERS_FIRST)
    if failed:
        where = (findings.chosen and findings.chosen.network) or "the network"
        otherwise = "on these nodes, run: ip -br addr; ip route"
        fixes = {REMEDIES.get(why, otherwise).format(network=where) for why in failed.values()}
        return Row("every pair", "FAIL", _failures(findings, failed), "\n".join(sorted(fixes)))
    if not directions:
        return Row("every pair", "ok", ("one node: nothing to connect",))
    connect_s, pair = max(
        (connection.connect_s or 0.0, pair) for pair, connection in directions.items()
    )
    slowest = f"slowest {' to '.join(pair)}, {connect_s * 1000:.1f} ms"
    return Row("every pair", "ok", (f"{len(directions)} of {wanted} connections work; {slowest}",))


def clocks(findings: Findings) -> Row:
    """Whether the clocks agree well enough to order events."""
    skews = {node.name: node.skew_s for node in findings.nodes if node.skew_s is not None}
    if not skews:
        return Row("clocks", "warn", ("no node reported its time",), OTHERS_FIRST)
    odd = {
        name: f"{skew:+.1f} s" for name, skew in skews.items() if abs(skew) > CLOCK_SKEW_REPORTED_S
    }
    if odd:
        each = tuple(f"{name}: {skew} from this machine's clock" for name, skew in odd.items())
        where = "here" if len(odd) == len(skews) > 1 else "on these nodes"
        return Row("clocks", "warn", shortened(each), f"run {where}: sudo timedatectl set-ntp true")
    worst = max(abs(skew) for skew in skews.values())
    return Row("clocks", "ok", (f"within {max(worst * 1000, 1):.0f} ms of this machine's",))


def _failures(findings: Findings, failed: dict[tuple[str, str], str]) -> tuple[str, ...]:
    """The failures; a node that no other reaches, or that reaches no other, gets a single line."""
    lines: list[str] = []
    left = dict(failed)
    others = len(findings.nodes) - 1
    for end, template in ((1, "no node reaches {} ({})"), (0, "{} reaches no other node")):
        least = others - len(lines)
        for node in findings.nodes:
            of_node = {pair: why for pair, why in left.items() if pair[end] == node.name}
            if len(of_node) >= least > 1 and len({*of_node.values()}) == 1:
                text = template.format(node.name, node.address)
                lines.append(f"{text}: {next(iter(of_node.values()))}")
                left = {pair: why for pair, why in left.items() if pair not in of_node}
    lines += [f"{sender} to {receiver}: {why}" for (sender, receiver), why in left.items()]
    return shortened(lines)


ROWS: Sequence[Callable[[Findings], Row]] = (network, pairs, clocks)
