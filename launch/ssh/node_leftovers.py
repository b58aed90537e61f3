"""Find what runs have left on the nodes' own disks, and remove it.

On a node that sees this machine's files, only the data of --send is looked for. Run folders, and
the checkpoints in them, are kept on all nodes.
"""

import socket
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from launch.deadlines import NODE_LISTS_FILES_S
from launch.nodes import node_data, node_facts
from launch.nodes.answers import LeftFolder
from launch.nodes.survey import Survey, Transport, facts_request
from launch.runs.leftovers import FAILED, Leftover, data_leftover

UNKNOWN = "the node has not confirmed the removal"


def on_nodes(
    transport: Transport,
    folder: str | None,
    running: Collection[str],
    *,
    remove: bool,
) -> tuple[list[Leftover], list[str]]:
    """The leftovers on these nodes, and a line for each node that did not answer.

    Args:
        transport: how the nodes are asked.
        folder: the checkout's folder on the nodes; None: the default folder.
        running: the runs that are not over.
        remove: whether to remove all that need not stay; failures are recorded in the leftovers.
    """
    with Survey(transport, node_data) as survey:
        with facts_request(folder) as query:
            probes, silent = survey.probes(query)
        names = dict(zip(probes, survey.names_of(probes), strict=True))
        own = socket.gethostname()  # what is on this machine is listed without --hosts
        others = {
            index: names[index]
            for index, probe in probes.items()
            if not (probe.shared and probe.host == own)
        }
        data, failed_data = _data(survey, others, remove=remove)
        folders = {str(index): probe.folder for index, probe in probes.items() if not probe.shared}
        if not folders:
            return data, [*silent.values(), *failed_data]
        apart = [*map(int, folders)]
        request: dict[str, Any] = {"folders": folders}
        answers = survey.ask(node_facts.leftovers, apart, NODE_LISTS_FILES_S, **request)
        failed = [line for index, line in survey.silent(answers).items() if index in apart]
        leftovers = {
            index: [_leftover(entry, names[index], running) for entry in answer.value]
            for index, answer in answers.items()
        }
        if remove:
            request["paths"] = {str(index): _removable(leftovers.get(index, [])) for index in apart}
            answers = survey.ask(
                node_facts.remove_leftovers, list(leftovers), NODE_LISTS_FILES_S, **request
            )
            lines = survey.silent(answers)
            failed += [lines[index] for index in leftovers if index in lines]
            for index, of_node in leftovers.items():
                unknown = dict.fromkeys(request["paths"][str(index)], UNKNOWN)
                errors = answers[index].value if index in answers else unknown
                leftovers[index] = [_after_removal(leftover, errors) for leftover in of_node]
    every = [leftover for index in sorted(leftovers) for leftover in leftovers[index]]
    return [*every, *data], [*silent.values(), *failed, *failed_data]


def _data(
    survey: Survey, names: Mapping[int, str], *, remove: bool
) -> tuple[list[Leftover], list[str]]:
    """The data of --send on these nodes, including nodes that see this machine's files."""
    answers = survey.ask(node_data.data_left, [*names], NODE_LISTS_FILES_S)
    silent = survey.silent(answers)
    found = {
        index: [data_leftover(entry, names[index]) for entry in answers[index].value]
        for index in names
        if index in answers
    }
    if remove and any(found.values()):
        paths = {str(index): _removable(left) for index, left in found.items()}
        paths |= {str(index): [] for index in range(len(survey.names)) if index not in found}
        answers = survey.ask(node_data.remove_data, [*found], NODE_LISTS_FILES_S, paths=paths)
        for index, left in found.items():
            unknown = dict.fromkeys(paths[str(index)], UNKNOWN)
            errors = answers[index].value if index in answers else unknown
            found[index] = [_after_removal(leftover, errors) for leftover in left]
    lines = [silent[index] for index in names if index in silent]
    return [leftover for index in sorted(found) for leftover in found[index]], lines


def _leftover(entry: LeftFolder, node: str, running: Collection[str]) -> Leftover:
    """The leftover that a node's entry describes."""
    run = entry.run
    stays = ""
    if run in running:
        stays = "its run is not over"
    elif entry.used:
        stays = "a file of its run has changed within the last seven days"
    kind = (
        f"files that were sent for {run}" if run else "temporary files of a process that was killed"
    )
    return Leftover(entry.path, kind, entry.bytes, node, stays)


def _removable(leftovers: Collection[Leftover]) -> list[str]:
    return [leftover.path for leftover in leftovers if not leftover.stays]


def _after_removal(leftover: Leftover, failed: Mapping[str, str]) -> Leftover:
    if leftover.path not in failed:
        return leftover
    return replace(leftover, stays=FAILED, error=failed[leftover.path])
