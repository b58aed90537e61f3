"""Put the data of --send on every node before workers start.

`node_data.py` is the nodes' side, and its docstring explains how it works. A survey asks each node
for the place, claims the places that are not complete, and completes them once rsync has copied the
data. Either this machine copies it through ssh (`ssh/transfer.py`), or each node copies it from a
disk that the node sees.
"""

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rich.filesize import decimal

from configs.settings.launch import Sending
from launch.deadlines import CLAIM_RENEWED_EVERY_S, DATA_LOOKED_AT_EVERY_S, NODE_LISTS_FILES_S
from launch.nodes import node_data
from launch.nodes.channel import running_s
from launch.nodes.survey import Survey, Transport
from muster.errors import MusterError
from muster.printable import listed, on_one_line, printable

LISTED = 4  # symbolic links that cannot be sent
ARCHIVES = (".zip", ".tar", ".tgz")
FULL = ("No space left on device", "Disk quota exceeded")  # in rsync's messages
# Copies the source to the place on each of these nodes, by index, and calls a function repeatedly
# in the meantime. Returns the error of each node that failed.
Copy: TypeAlias = Callable[[Mapping[int, str], Callable[[], None]], Mapping[int, str]]


def problems(sending: Sending, cwd: Path) -> Iterator[str]:
    """A line if --send does not name a folder."""
    path = cwd / sending.source
    if path.is_dir():
        return
    if not path.exists():
        yield f"--send {sending}: {sending.source}: No such file or directory\ntip: give a folder"
    elif path.suffix not in ARCHIVES and ".tar." not in path.name:
        yield (
            f"--send {sending}: {sending.source} is not a folder"
            "\ntip: give the folder that contains it"
        )
    else:
        archive = shlex.quote(str(path.absolute()))
        name = path.name.strip(".").partition(".")[0]
        folder = '"${{TMPDIR:-/tmp}}/{}"'.format(re.sub(r'[\\"`$]', r"\\\g<0>", name))
        if sending.place:
            folder = _in_shell(sending.place)
        unpack = f"tar -xf {archive} -C {folder}"
        if path.suffix == ".zip":
            unpack = f"python3 -m zipfile -e {archive} {folder}"
        yield (
            f"--send {sending}: {sending.source} is an archive, but only folders can be sent"
            "\ntip: send the unpacked folder, or have each node unpack the archive from a shared "
            "disk: "
            f"--prologue FILE, with this line in FILE: mkdir -p {folder} && {unpack} && export "
            f"MUSTER_DATA={folder}"
        )


def _in_shell(place: str) -> str:
    """PLACE as a shell word in which the shell expands what a node would expand."""

    def quoted(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name == "TMPDIR":
            return "${TMPDIR:-/tmp}"
        return found[0] if name else f"\\{found[0]}"

    user, rest = re.fullmatch(r"(~[\w.-]*/?)?(.*)", place, re.DOTALL).groups("")  # type: ignore[union-attr]
    variable = node_data.VARIABLE.pattern
    rest = re.sub(rf'{variable}|[\\"`$]', quoted, rest)
    return f'{user}"{rest}"' if rest else user


def copy_data(
    sending: Sending,
    names: Sequence[str],
    transport: Transport,
    copy: Copy | None,
    *,
    quiet: bool = False,
) -> list[str]:
    """Put the data on each of these nodes; return the place on each node.

    `names`: the nodes' names in messages. `copy`: see `Copy`; None: each node copies the source
    itself, from a disk that it sees.

    Raises:
        MusterError: a line for each node that cannot get the data. The next try continues after
            what has already been copied.
    """

    def say(line: str) -> None:
        if not quiet:
            print(on_one_line(line), file=sys.stderr, flush=True)

    source = Path(sending.source)
    entries = _entries(source)
    with Survey(transport, node_data) as survey:
        nodes = _Nodes(survey, names)
        found = nodes.ask(
            node_data.find_destination,
            range(len(names)),
            source=str(source),
            version=node_data.version_of(entries),
            count=len(entries),
            owner=source.stat().st_uid,
            place=sending.place or str(source),
            name=source.resolve().name if sending.place else "",
            copies=copy is None,
        )
        places = {index: found[index].place for index in range(len(names))}
        left = [index for index in places if not found[index].complete]
        outcome = " (already complete, nothing to send)"
        if left:
            size = decimal(sum(size_bytes for _, size_bytes, *_ in entries))
            say(f"sending {source} ({size}) to {len(left)} node{'s' * (len(left) > 1)}")
        began_s = running_s()
        waits = False
        # If nodes share a disk, one of them claims the place; the others find it complete later.
        while left:
            states = nodes.ask(node_data.claim_destination, left)
            claimed = {i: places[i] for i in left if states[i].state == "claimed"}
            left = [i for i in left if states[i].state == "taken"]
            if claimed:
                errors = (copy or nodes.copy)(claimed, nodes.keeper(claimed))
                if errors:
                    raise MusterError(nodes.explained(errors, places))
                _refuse_changed(source, entries)
                nodes.ask(node_data.finish_transfer, claimed)
                outcome = f" ({running_s() - began_s:.0f} s)"
            elif left:
                if not waits:
                    others = listed([f"{names[index]}: {places[index]}" for index in left])
                    say(f"waiting for another run that is sending data to {others}")
                waits = True
                time.sleep(DATA_LOOKED_AT_EVERY_S)
    is_same = len(set(places.values())) == 1
    where = places[0] if is_same else ", ".join(map("{}: {}".format, names, places.values()))
    say(f"data: {where}{outcome}")
    return [*places.values()]


@dataclass(frozen=True)
class _Nodes:
    """The nodes of a survey, and their names in messages."""

    survey: Survey
    names: Sequence[str]

    def ask(
        self, function: Callable[..., Any], of: Collection[int], **arguments: Any
    ) -> dict[int, Any]:
        """The answers of these nodes.

        Raises:
            MusterError: a line for each node that does not answer, or whose answer has `failed`.
        """
        answers = self.survey.ask(function, of, NODE_LISTS_FILES_S, **arguments)
        silent = self.survey.silent(answers)
        lines = [silent[index] for index in of if index in silent]
        values = {index: answers[index].value for index in of if index in answers}
        for index, value in values.items():
            if value.failed:
                lines.append(f"{self.names[index]}: {value.failed}")
        if lines:
            raise MusterError(printable("\n".join(lines)))
        return values

    def keeper(self, of: Collection[int]) -> Callable[[], None]:
        """A function that keeps the claims of these nodes, as long as it is called repeatedly."""
        next_s = 0.0

        def keep() -> None:
            nonlocal next_s
            if running_s() >= next_s:
                # if a node does not answer, its rsync reports why
                self.survey.ask(node_data.renew_claim, of, CLAIM_RENEWED_EVERY_S)
                next_s = running_s() + CLAIM_RENEWED_EVERY_S

        return keep

    def copy(self, places: Mapping[int, str], keep: Callable[[], None]) -> Mapping[int, str]:
        """Wait until these nodes have copied the source themselves, or one of them has failed."""
        while True:
            states = self.ask(node_data.renew_claim, places)
            errors = {index: state.error for index, state in states.items() if state.error}
            if errors or all(state.is_over for state in states.values()):
                return errors
            time.sleep(DATA_LOOKED_AT_EVERY_S)

    def explained(self, errors: Mapping[int, str], places: Mapping[int, str]) -> str:
        """A line for each rsync error; a node with a full disk removes the partial copy."""
        full = [str(index) for index, text in errors.items() if any(each in text for each in FULL)]
        answers = self.survey.ask(node_data.clear_full_disk, errors, NODE_LISTS_FILES_S, full=full)
        lines = []
        for index, text in sorted(errors.items()):
            line = f"{text}; run the same command again to continue where it stopped"
            if index in answers and answers[index].value.full:
                line = (
                    "No space left on device; the partial copy was removed"
                    "\ntip: free some space, or "
                )
                line += "choose another disk"
            lines.append(f"{self.names[index]}: {places[index]}: {line}")
        return printable("\n".join(lines))


def _refuse_changed(source: Path, entries: Sequence[tuple[str, int, int, str]]) -> None:
    if changed := sorted({*_entries(source)} ^ {*entries}):
        path = on_one_line(source / changed[0][0])
        raise MusterError(
            f"--send: {path} changed while it was being sent\ntip: start the run again"
        )


def _entries(source: Path) -> list[tuple[str, int, int, str]]:
    """The entries of the source; see `node_data`.

    Raises:
        MusterError: a part cannot be read, or is a symbolic link that points outside the folder.
    """
    try:
        entries = [tuple(entry) for entry in node_data.entries_of(str(source))]
    except OSError as error:
        raise MusterError(f"--send {source}: {error.filename}: {error.strerror}") from None
    outside = [
        f"--send: {on_one_line(source / path)} is a symbolic link to {on_one_line(link)}, which is "
        "an absolute path, or outside the folder"
        "\ntip: replace the link with a copy"
        for path, _, _, link in entries
        if link and _is_outside(os.path.normpath(os.path.join(os.path.dirname(path), link)))  # noqa: PTH118, PTH120
    ]
    if outside:
        more = [f"and {len(outside) - LISTED} more"] if len(outside) > LISTED else []
        raise MusterError("\n".join([*outside[:LISTED], *more]))
    return entries


def _is_outside(target: str) -> bool:
    return target == ".." or target.startswith(("../", "/"))
