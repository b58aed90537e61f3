"""What runs have left on nodes with their own disk, and its removal.

A node that sees this machine's files has nothing of its own: its run folders are the user's records
of the runs.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from launch.deadlines import NODE_LISTS_LEFTOVERS_S
from launch.nodes import node_facts
from launch.nodes.survey import Survey, Transport, facts_request
from launch.runs.leftovers import FAILED, Leftover

UNKNOWN = "the node has not said whether it is removed"


def on_nodes(
    transport: Transport,
    folder: str | None,
    named: Collection[str],
    running: Collection[str],
    *,
    remove: bool,
) -> tuple[list[Leftover], list[str]]:
    """What is left over on these nodes, and one line for each node that did not answer.

    Args:
        transport: how the nodes are asked.
        folder: that of the checkout on the nodes; None: the default one.
        named: the runs whose checkpoints are removed, too.
        running: the runs that are not over.
        remove: remove all that does not stay; what could not be removed stays, with the reason.
    """
    with Survey(transport) as survey:
        with facts_request(folder) as request:
            probes, silent = survey.probes(request)
        names = dict(zip(probes, survey.names_of(probes), strict=True))
        apart = {str(index): one["folder"] for index, one in probes.items() if not one["shared"]}
        if not apart:
            return [], [*silent.values()]
        of = [*map(int, apart)]
        asked: dict[str, Any] = {"folders": apart, "named": sorted(named)}
        answers = survey.ask(node_facts.leftovers, of, NODE_LISTS_LEFTOVERS_S, **asked)
        failed = [line for index, line in survey.silent(answers).items() if index in of]
        found = {
            index: [_leftover(one, names[index], named, running) for one in answer.value]
            for index, answer in answers.items()
        }
        if remove:
            asked["paths"] = {str(index): _removable(found.get(index, [])) for index in of}
            answers = survey.ask(
                node_facts.remove_leftovers, list(found), NODE_LISTS_LEFTOVERS_S, **asked
            )
            lines = survey.silent(answers)
            failed += [lines[index] for index in found if index in lines]
            for index, leftovers in found.items():
                unknown = dict.fromkeys(asked["paths"][str(index)], UNKNOWN)
                errors = answers[index].value if index in answers else unknown
                found[index] = [_after_removal(one, errors) for one in leftovers]
    return [one for index in sorted(found) for one in found[index]], [*silent.values(), *failed]


def _leftover(
    known: Mapping[str, Any], node: str, named: Collection[str], running: Collection[str]
) -> Leftover:
    """What a node has at one path."""
    run = known["run"]
    path = PurePosixPath(known["path"])
    stays = ""
    if run in running or known["used"]:
        stays = "its run may not be over"
    elif known["checkpoints"] and run not in named:
        stays = f"it has checkpoints; to remove them, name the run: {run}"
    if not run:
        what = "temporary files of a process that was killed"
    elif path.name == run:
        what = "the run's files on this node"
    else:
        what = f"what {run} was sent"
    return Leftover(str(path), what, known["bytes"], node, stays)


def _removable(found: Collection[Leftover]) -> list[str]:
    return [leftover.path for leftover in found if not leftover.stays]


def _after_removal(leftover: Leftover, failed: Mapping[str, str]) -> Leftover:
    if leftover.path not in failed:
        return leftover
    return replace(leftover, stays=FAILED, error=failed[leftover.path])
