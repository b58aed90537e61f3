"""Choose where the data of --send are, or go to, on each node.

A folder that --send has not made is used if its content is the same, and is never written.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.filesize import decimal

from configs.settings.launch import Sending
from launch.deadlines import NODE_COMPARES_DATA_S, NODE_LISTS_FILES_S
from launch.nodes import node_data
from launch.nodes.data_source import Source
from launch.nodes.survey import Survey
from muster.errors import MusterError
from muster.printable import printable


class DataPlaces:
    """The place of the data on each node, and which nodes lack them.

    Raises:
        MusterError: on creation; a line for each node that has no place for them.
    """

    def __init__(
        self, source: Source, sending: Sending, names: Sequence[str], survey: Survey
    ) -> None:
        """`names`: of the nodes, in messages."""
        self._source = source
        self._names = names
        self._survey = survey
        self._problems: dict[int, str] = {}
        self.by_node: dict[int, str] = {}
        self.lacking: list[int] = []
        answers = survey.ask(
            node_data.look_for_data,
            timeout_s=NODE_LISTS_FILES_S,
            place=sending.place or str(source.path),
            name=source.name if sending.place else "",
            source=str(source.path),
        )
        self._problems |= survey.silent(answers)
        replies = {index: answer.value for index, answer in answers.items()}
        self.unseeing = {index for index, reply in replies.items() if not reply.get("sees")}
        for index, reply in replies.items():
            if "failed" in reply:
                self._problems[index] = f"{names[index]}: {reply['failed']}"
        self._choose({i: reply["options"] for i, reply in replies.items() if "options" in reply})
        if self._problems:
            lines = [self._problems[index] for index in sorted(self._problems)]
            raise MusterError(printable("\n".join(lines)))

    def _choose(self, options: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        """Choose from the options of these nodes; the first one that can be used is taken."""
        if not options:
            return
        same = self._with_same_content(
            {
                index: first["place"]
                for index, (first, *_) in options.items()
                if first["state"] == "foreign"
            }
        )
        others: dict[int, Sequence[Mapping[str, Any]]] = {}
        for index, (first, *more) in options.items():
            if first["state"] != "foreign":
                self._use(index, first)
            elif index in same:
                self.by_node[index] = first["place"]
            elif index not in self._problems:
                others[index] = more
        for index in [index for index, more in others.items() if not more]:
            del others[index]
            self._problems[index] = self._elsewhere(
                index, options[index][0]["place"], "exists there, and Muster did not make it"
            )
        self._choose(others)

    def _use(self, index: int, option: Mapping[str, Any]) -> None:
        """Use a place that is new, or that --send has made."""
        source = self._source
        place = option["place"]
        if option["state"] == "sent":
            is_same = option["version"] == source.version
            if option["intact"] and (is_same or option["content"] == source.content.result()):
                self.by_node[index] = place
                return
            if option["changed"]:
                names = ", ".join(option["changed"])
                self._problems[index] = self._elsewhere(
                    index, place, f"has files that were not sent, or were changed there: {names}"
                )
                return
        if source.bytes - option["partial_bytes"] > option["free_bytes"]:
            self._problems[index] = (
                f"{self._names[index]}: {place} has {decimal(option['free_bytes'])} free, and "
                f"{source.path} has {decimal(source.bytes)}; make room there, or name a place on "
                f"another disk: --send {source.path}:PLACE"
            )
            return
        self.by_node[index] = place
        self.lacking.append(index)

    def _elsewhere(self, index: int, place: str, what: str) -> str:
        other = shlex.quote(f"{self._source.path}:{place}-sent")
        return f"{self._names[index]}: {place} {what}; choose another place: --send {other}"

    def _with_same_content(self, places: Mapping[int, str]) -> set[int]:
        """The nodes on which the folder at this place has the same content."""
        same: set[int] = set()
        if self._source.archive:
            return same
        content = ""  # first without: names and times may show that they are the same files
        while places:
            answers = self._survey.ask(
                node_data.compare_data,
                timeout_s=NODE_COMPARES_DATA_S,
                places={str(index): place for index, place in places.items()},
                size=[len(self._source.entries), self._source.bytes],
                version=self._source.version,
                content=content,
            )
            silent = self._survey.silent(answers)
            self._problems |= {index: silent[index] for index in places if index in silent}
            replies = {index: answers[index].value for index in places if index in answers}
            same |= {index for index, reply in replies.items() if reply == "same"}
            places = {
                index: places[index] for index, reply in replies.items() if reply == "unknown"
            }
            if places:
                content = self._source.content.result()
        return same
