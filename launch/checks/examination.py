"""Check every node, and test every pair of nodes; the nodes need nothing but Python."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launch.checks import network_checks, node_checks
from launch.checks.findings import CheckedNode, Findings, PairConnection, Row
from launch.deadlines import NODE_CONNECTS_S
from launch.nodes import node_facts
from launch.nodes.answers import Probe
from launch.nodes.network_choice import Choice
from launch.nodes.resources import node_resources
from launch.nodes.survey import Answer, Survey, Transport, facts_request
from launch.spec import NodeFacts, WorkersPython
from muster.errors import MusterError

PINGS = 3


def look(
    transport: Transport,
    launcher: str,
    choose: Callable[[Mapping[int, Probe]], Choice],
    workers: WorkersPython | None = None,
    folder: str | None = None,
    python: str | None = None,
    disks: Mapping[str, Path] | None = None,
    planned: Sequence[NodeFacts] = (),
) -> list[Row]:
    """Ask all nodes for their facts, and check those that answer.

    `workers` is the workers' Python (default: the trainer's). `folder`, `python` and `disks` are as
    in `facts_request`. `planned` are the nodes of a run whose workers will have the cores that the
    nodes see now.
    """
    workers = workers or WorkersPython()
    opened = facts_request(folder, python, disks, workers.python)
    with opened as request, Survey(transport) as survey:
        probes, silent = survey.probes(request)
        silence = list(silent.values())
        return check_answers(survey, probes, launcher, choose, workers, silence, planned)


def check_answers(
    survey: Survey,
    probes: Mapping[int, Probe],
    launcher: str,
    choose: Callable[[Mapping[int, Probe]], Choice],
    workers: WorkersPython,
    silent: Sequence[str] = (),
    planned: Sequence[NodeFacts] = (),
) -> list[Row]:
    """Test the network between the nodes that answered with `probes`; return all checks' rows.

    `choose` chooses the network, and `silent` has a line for each node that has not answered. For
    `planned`, see `look`.
    """
    if not probes:
        return examination(Findings(launcher, (), silent))
    trouble = ""
    chosen = None
    try:
        chosen = choose(probes)
    except MusterError as error:
        trouble = str(error)
    job = survey.transport.job
    resources = survey.ask(node_resources, probes, job_cpus=job.cpus_variable if job else "")
    workers_of = _workers_by_machine(planned, probes)
    pings = [survey.ask(node_facts.tell_time, probes) for _ in range(PINGS)]
    addresses = dict(zip(probes, chosen.addresses, strict=True)) if chosen else {}
    connections = _try_pairs(survey, addresses) if chosen else {}
    names = dict(zip(probes, survey.names_of(probes), strict=True))
    nodes = tuple(
        CheckedNode(
            name=names[index],
            probe=probe,
            address=addresses.get(index),
            skew_s=clock_skew_s([ping[index] for ping in pings if index in ping]),
            connections={
                names[other]: connection for other, connection in connections.get(index, {}).items()
            },
            shared_memory=resources[index].value.shared_memory if index in resources else None,
            cores=resources[index].value.cores if index in resources else None,
            workers=workers_of[planned[index].spec.name] if planned else 0,
        )
        for index, probe in probes.items()
    )
    means = survey.transport.means
    return examination(Findings(launcher, nodes, silent, chosen, trouble, workers, means))


def examination(findings: Findings) -> list[Row]:
    """The rows of the findings; a single row if no node has answered."""
    others = (*node_checks.ROWS, *network_checks.ROWS) if findings.nodes else ()
    return [check(findings) for check in (network_checks.reach, *others)]


def _workers_by_machine(planned: Sequence[NodeFacts], probes: Mapping[int, Probe]) -> Counter[str]:
    """The number of planned workers that share the cores of each machine."""
    counts = Counter[str]()
    for index, probe in probes.items() if planned else ():
        node = planned[index]
        counts[node.spec.name] += node.nproc.counted(len(probe.gpus)).number or 0
    return counts


def clock_skew_s(answers: Sequence[Answer]) -> float | None:
    """How far a node's clock is ahead of this machine's, based on the node's quickest answer.

    Half of the round trip is subtracted, so the error is at most that half.
    """
    if not answers:
        return None
    best = min(answers, key=lambda answer: answer.heard_unix_s - answer.asked_unix_s)
    return float(best.value) - (best.asked_unix_s + best.heard_unix_s) / 2


def _try_pairs(
    survey: Survey, addresses: Mapping[int, str]
) -> dict[int, dict[int, PairConnection]]:
    """Test the connections from each node to all others; all listen before the first connects."""
    listening = survey.ask(node_facts.listen, addresses, addresses=addresses)
    servers = {index: (addresses[index], answer.value) for index, answer in listening.items()}
    answers = survey.ask(node_facts.connect, addresses, servers=servers, patience_s=NODE_CONNECTS_S)
    return {
        index: {
            other: PairConnection(*answer.value[str(other)])
            for other in addresses
            if str(other) in answer.value
        }
        for index, answer in answers.items()
    }
