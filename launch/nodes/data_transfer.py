"""Have the data of --send on every node before workers start.

`node_data.py` is the nodes' side. First a survey asks where the data may go on each node, and
whether they are there already. A folder that --send has not made is used if its content is the
same, and is never written. Then the data go to the nodes that lack them. Each node takes them from
a connection of its own, or, where nodes see the source, copies them by itself.
"""

import json
import os
import shlex
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from fcntl import F_SETPIPE_SZ, fcntl
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from rich.filesize import decimal

from configs.settings.launch import Sending
from launch.deadlines import (
    BAR_PRINTED_EVERY_S,
    DATA_LOOKED_AT_EVERY_S,
    NODE_COMPARES_DATA_S,
    SENDER_IS_ALIVE_EVERY_S,
)
from launch.nodes import node_data
from launch.nodes.channel import MARK, QUOTED_CHARACTERS, running_s
from launch.nodes.survey import Survey, Transport
from muster.errors import MusterError
from muster.printable import on_one_line, printable
from muster.records import fits, is_whole

SMALL_BYTES = 65_536  # a smaller file is sent together with others
PIPE_BYTES = 1 << 20
PART_BYTES = 8 << 20  # of a large file, between two looks at the progress
ANSWER_BYTES = 65_536
LISTED = 4  # names of entries that cannot be sent
TRANSFERS = 16  # at the same time
# The command that has a node's python3 read a program and then its input; by the node's index.
Command: TypeAlias = Callable[[int], Sequence[str]]


def archive_kind(path: Path) -> str:
    """`tar`, `zip`, or "" for a file that is no archive."""
    import tarfile  # here, since few runs send an archive
    import zipfile

    # a tar file may end with a zip file
    if tarfile.is_tarfile(path):
        return "tar"
    return "zip" if zipfile.is_zipfile(path) else ""


def problems(sending: Sending, cwd: Path) -> Iterator[str]:
    """A line if --send names nothing that can be sent."""
    path = cwd / sending.source
    try:
        if path.is_dir():
            return
        if not path.exists():
            yield f"--send {sending}: {sending.source} does not exist; give a folder or an archive"
        elif not path.is_file() or not archive_kind(path):
            yield f"--send {sending}: {sending.source} is no folder, and no tar or zip archive"
        elif sending.place is None:
            place = f"{sending.source}:/tmp/{_plain_name(path)}"
            yield (
                f"--send {sending}: an archive is unpacked at a place that you name: --send "
                f"{shlex.quote(place)}"
            )
    except OSError as error:
        yield f"--send {sending}: {error.strerror}"


def _plain_name(path: Path) -> str:
    """The name of a folder for the data: that of the source, without an archive's endings."""
    name = path.name
    while Path(name).suffix in (".tar", ".gz", ".tgz", ".xz", ".bz2", ".zst", ".zip"):
        name = Path(name).stem
    return name


def _is_position(value: Any) -> bool:
    return fits(value, [is_whole]) and len(value) == 2 and min(value) >= 0


ANSWER = ({"at": _is_position}, {"waits": bool}, {"content": str}, {"failed": str})


class Source:
    """A folder or an archive to send, as it is now.

    Raises:
        MusterError: on creation; a part of it cannot be read, or is nothing that can be sent.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = _plain_name(path.resolve())
        try:
            self.archive = "" if path.is_dir() else archive_kind(path)
            entries, root = node_data.source_entries(str(path.resolve()))
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError as error:
            raise MusterError(
                f"--send {path}: {error.filename or path}: {error.strerror}"
            ) from None
        self.entries: list[list[Any]] = entries
        self.root = Path(root)
        # who may not read an archive may not enter its folder either
        self.mode = mode | (mode & 0o444) >> 2 if self.archive else mode
        self.bytes = sum(entry[2] for entry in entries)
        lines = [line for entry in entries if (line := self._problem(entry))]
        if lines:
            more = [f"and {len(lines) - LISTED} more"] if len(lines) > LISTED else []
            raise MusterError("\n".join([*lines[:LISTED], *more]))

    def _problem(self, entry: Sequence[Any]) -> str:
        name, kind, *_, link, _, _ = entry
        path = on_one_line(f"{self.path}/{name}")
        if kind == "other":
            return f"--send: {path} is no file, folder or link; leave it out"
        target = os.path.normpath(os.path.join(os.path.dirname(name), link))  # noqa: PTH118, PTH120
        if kind == "link" and (target == ".." or target.startswith(("../", "/"))):
            return (
                f"--send: {path} is a link to {on_one_line(link)}, which is outside and would lead "
                "nowhere on a node; put a copy in its place"
            )
        return ""

    @cached_property
    def version(self) -> str:
        """What tells this state of the files from any other."""
        return str(node_data.version_of(self.entries))

    @cached_property
    def content(self) -> "Future[str]":
        """The digest of the content, for which all is read, once somebody asks."""
        future: Future[str] = Future()

        def read() -> None:
            try:
                future.set_result(str(node_data.content_of(self.entries, str(self.root))))
            except OSError as error:
                future.set_exception(MusterError(f"--send: {error.filename}: {error.strerror}"))

        threading.Thread(target=read, daemon=True).start()
        return future

    def request(self, place: str) -> dict[str, Any]:
        """What a node is told before data come."""
        return {
            "place": place,
            "version": self.version,
            "archive": self.archive,
            "mode": self.mode,
        }


def have_data(
    sending: Sending,
    names: Sequence[str],
    transport: Transport,
    command: Command | None,
    *,
    quiet: bool = False,
) -> list[str]:
    """Have the data on each of these nodes; return their place there.

    `names`: of the nodes, in messages. `command`: see `Command`; None: the nodes see the source.

    Raises:
        MusterError: a line for each node that cannot have them. What came stays for another try.
    """
    source = Source(Path(sending.source))
    say = _Printer(quiet)
    with Survey(transport, node_data) as survey:
        choice = _Choice(source, sending, names, survey)
        if lacking := choice.lacking:
            if command is None and (unseen := sorted(choice.unseen & {*lacking})):
                raise MusterError(
                    f"{', '.join(names[index] for index in unseen)}: does not see {source.path}, "
                    "from which a job's nodes copy; put it on the file system that all nodes share"
                )
            count = f"{len(lacking)} node{'s' * (len(lacking) > 1)}"
            say(f"sending {source.path} ({decimal(source.bytes)}) to {count}")
            began_s = running_s()
            places = {index: choice.places[index] for index in lacking}
            if command is None:
                _have_copied(source, survey, places, names, say)
            else:
                transfers = [
                    _Transfer(source, names[index], place, command(index), index, transport)
                    for index, place in places.items()
                ]
                _run_all(transfers, say)
            say(f"data: {_where(choice.places, names)} ({running_s() - began_s:.0f} s)")
        else:
            say(f"data: {_where(choice.places, names)}; nothing is sent: they are there already")
    return [choice.places[index] for index in range(len(names))]


def _where(places: Mapping[int, str], names: Sequence[str]) -> str:
    """Where the data are: one path, or each node's."""
    if len(set(places.values())) == 1:
        return places[0]
    return ", ".join(f"{names[index]}: {place}" for index, place in sorted(places.items()))


class _Printer:
    """Prints lines to stderr; about progress at intervals."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._next_s = running_s() + BAR_PRINTED_EVERY_S
        self._begin: tuple[float, int] | None = None

    def __call__(self, line: str) -> None:
        if not self._quiet:
            print(on_one_line(line), file=sys.stderr, flush=True)

    def progress(self, sent: Mapping[str, int], total: int) -> None:
        """Print how far the slowest node is, and how fast all are; `sent`: bytes, by node."""
        now_s, all_bytes = running_s(), sum(sent.values())
        self._begin = self._begin or (now_s, all_bytes)
        if not sent or now_s < self._next_s:
            return
        self._next_s = now_s + BAR_PRINTED_EVERY_S
        since_s, since_bytes = self._begin
        speed = decimal(int((all_bytes - since_bytes) / max(now_s - since_s, 1e-3)))
        slowest = min(sent, key=lambda name: sent[name])
        share = 100 * sent[slowest] // max(total, 1)
        self(f"{share} % of {decimal(total)} are on {slowest}, the slowest; {speed}/s in all")


class _Choice:
    """Where each node's data are or go to.

    Raises:
        MusterError: on creation; a line for each node that has no place for them.
    """

    def __init__(
        self, source: Source, sending: Sending, names: Sequence[str], survey: Survey
    ) -> None:
        self._source = source
        self._names = names
        self._survey = survey
        self.places: dict[int, str] = {}
        self.lacking: list[int] = []
        self._problems: dict[int, str] = {}
        looks = survey.ask(
            node_data.look_for_data,
            timeout_s=NODE_COMPARES_DATA_S,
            place=sending.place or str(source.path),
            name=source.name if sending.place else "",
            source=str(source.path),
        )
        self._problems |= survey.silent(looks)
        options: dict[int, list[Mapping[str, Any]]] = {}
        for index, answer in looks.items():
            if "failed" in answer.value:
                self._problems[index] = f"{names[index]}: {answer.value['failed']}"
            else:
                options[index] = answer.value["options"]
        self.unseen = {index for index, look in looks.items() if not look.value.get("sees")}
        while left := [
            index for index in options if index not in self.places.keys() | self._problems.keys()
        ]:
            same = self._with_same_content(
                {
                    index: options[index][0]["place"]
                    for index in left
                    if options[index][0]["state"] == "foreign"
                }
            )
            for index in left:
                option, *others = options[index]
                if option["state"] != "foreign":
                    self._use(index, option)
                elif index in same:
                    self.places[index] = option["place"]
                elif others:
                    options[index] = others
                else:
                    self._problems[index] = self._elsewhere(
                        index, option["place"], "exists there, and Muster did not make it"
                    )
        if self._problems:
            lines = [self._problems[index] for index in sorted(self._problems)]
            raise MusterError(printable("\n".join(lines)))

    def _use(self, index: int, option: Mapping[str, Any]) -> None:
        """Use a place that is new, or that --send has made."""
        source, name, place = self._source, self._names[index], option["place"]
        if option["state"] == "sent":
            is_same = option["version"] == source.version
            if option["intact"] and (is_same or option["content"] == source.content.result()):
                self.places[index] = place
                return
            if option["kept"]:
                kept = ", ".join(option["kept"])
                self._problems[index] = self._elsewhere(
                    index, place, f"has files that were not sent, or were changed there: {kept}"
                )
                return
        if source.bytes - option["brought_bytes"] > option["free_bytes"]:
            self._problems[index] = (
                f"{name}: {place} has {decimal(option['free_bytes'])} free, and {source.path} has "
                f"{decimal(source.bytes)}; make room there, or name a place on another disk: "
                f"--send {source.path}:PLACE"
            )
            return
        self.places[index] = place
        self.lacking.append(index)

    def _elsewhere(self, index: int, place: str, what: str) -> str:
        other = shlex.quote(f"{self._source.path}:{place}-sent")
        return f"{self._names[index]}: {place} {what}; choose another place: --send {other}"

    def _with_same_content(self, places: Mapping[int, str]) -> set[int]:
        """The nodes on which the folder at this place has the same content."""
        if not places or self._source.archive:
            return set()
        same: set[int] = set()
        content = ""
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


def _have_copied(
    source: Source,
    survey: Survey,
    places: Mapping[int, str],
    names: Sequence[str],
    say: _Printer,
) -> None:
    """Have these nodes copy the source, which they see.

    Raises:
        MusterError: a line for each node that failed.
    """
    survey.ask(
        node_data.fetch_data,
        places={str(index): place for index, place in places.items()},
        request=source.request(""),
        source=str(source.path),
    )
    while True:
        answers = survey.ask(node_data.data_progress, [*places])
        silent = survey.silent(answers)
        lines = [silent[index] for index in places if index in silent]
        states = {index: answers[index].value for index in places if index in answers}
        failed = {index: state["failed"] for index, state in states.items() if state["failed"]}
        lines += [f"{names[index]}: {reason}" for index, reason in failed.items()]
        if lines:
            raise MusterError(printable("\n".join(lines)))
        if all(state["over"] for state in states.values()):
            if len({state["content"] for state in states.values()}) > 1:
                raise MusterError(f"{source.path} has not the same content on all nodes; try again")
            return
        say.progress(
            {names[index]: state["bytes"] for index, state in states.items()}, source.bytes
        )
        time.sleep(DATA_LOOKED_AT_EVERY_S)


def _run_all(transfers: Sequence["_Transfer"], say: _Printer) -> None:
    """Carry out these transfers at the same time; the first failure ends all.

    Raises:
        MusterError: a line for each node that failed.
    """
    with ThreadPoolExecutor(min(len(transfers), TRANSFERS)) as pool:
        futures = [pool.submit(transfer.run) for transfer in transfers]
        try:
            left = set(futures)
            while left and not any(future.exception() for future in futures if future.done()):
                _, left = wait(left, DATA_LOOKED_AT_EVERY_S, FIRST_EXCEPTION)
                sent = {each.name: each.bytes for each in transfers if not each.is_over}
                say.progress(sent, transfers[0].source.bytes)
        finally:  # also at a signal
            for transfer in transfers:
                transfer.stop()
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, MusterError | _Ended):
            raise error
    if lines := [str(error) for error in errors if isinstance(error, MusterError)]:
        raise MusterError(printable("\n".join(lines)))


class _Ended(Exception):
    """A transfer was ended since another one has failed."""


class _Transfer:
    """The data on their way to one node."""

    def __init__(
        self,
        source: Source,
        name: str,
        place: str,
        argv: Sequence[str],
        index: int,
        transport: Transport,
    ) -> None:
        self.source = source
        self.name = name
        self.bytes = 0  # that are on the node, or on their way
        self.is_over = False
        self._place = place
        self._argv = argv
        self._index = index
        self._transport = transport
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """End it, if it is not over."""
        self._is_stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def run(self) -> None:
        """Carry it out.

        Raises:
            MusterError: it failed; one line.
        """
        if self._is_stopped:
            raise _Ended
        with tempfile.TemporaryFile() as errors:
            self._process = process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._transport.env,
                start_new_session=True,  # a terminal's Ctrl-C is for this process
            )
            assert process.stdin is not None and process.stdout is not None
            try:
                if self._is_stopped:
                    raise _Ended
                self._talk(process.stdin.fileno())
                self.is_over = True
            except (BrokenPipeError, EOFError):
                self._explain_end(process, errors)
            finally:
                with suppress(OSError):
                    process.stdin.close()
                if not self.is_over:
                    process.terminate()
                process.wait()
                process.stdout.close()

    def _explain_end(self, process: "subprocess.Popen[bytes]", errors: Any) -> None:
        """Raise the reason why the node takes no more."""
        with suppress(EOFError):
            self._answer()  # what it has said last
        if self._is_stopped:
            raise _Ended
        code = process.wait()
        errors.seek(0)
        text = errors.read(ANSWER_BYTES).decode(errors="replace")
        line = self._transport.explain(self._index, code, text)
        came = f"{decimal(self.bytes)} of {decimal(self.source.bytes)}"
        raise MusterError(
            f"{line}; {came} were on their way: the same command goes on from what came"
        )

    def _talk(self, to: int) -> None:
        program = Path(node_data.__file__).read_bytes() + b"\nreceive()\n"
        request = json.dumps(self.source.request(self._place)).encode()
        with suppress(OSError):  # a limit of the user's
            fcntl(to, F_SETPIPE_SZ, PIPE_BYTES)
        _write(to, b"%d\n%s%s\n" % (len(program), program, request))
        answer = self._answer()
        if "content" in answer:  # another run, or a node with the same disk, has brought them
            return
        index, offset = answer["at"]
        if index > len(self.source.entries):
            raise MusterError(f"{self.name}: it says that it has {index} files; try again")
        self.bytes = sum(entry[2] for entry in self.source.entries[:index]) + offset
        content = self.source.content
        self._send(to, index, offset)
        while not wait([content], SENDER_IS_ALIVE_EVERY_S).done:
            _write(to, b"\n")
        _write(to, json.dumps(content.result()).encode() + b"\n")
        self._answer()

    def _send(self, to: int, index: int, offset: int) -> None:
        """Send each entry from this one on, whose first `offset` bytes are there."""
        waiting = bytearray()
        for entry in self.source.entries[index:]:
            waiting += json.dumps(entry).encode() + b"\n"
            size = entry[2] - offset
            if size > 0:
                path = self.source.root / entry[0]
                with path.open("rb", buffering=0) as file:
                    if size <= SMALL_BYTES:
                        file.seek(offset)
                        waiting += self._whole(file.read(size), size, path)
                        self.bytes += size
                    else:
                        _write(to, waiting)
                        waiting.clear()
                        self._send_file(to, file.fileno(), offset, entry[2], path)
            offset = 0
            if len(waiting) > SMALL_BYTES:
                _write(to, waiting)
                waiting.clear()
        _write(to, waiting)

    def _send_file(self, to: int, file: int, at: int, end: int, path: Path) -> None:
        while at < end:
            sent = os.sendfile(to, file, at, min(end - at, PART_BYTES))
            self._whole(b"x" * min(sent, 1), 1, path)
            at += sent
            self.bytes += sent

    def _whole(self, data: bytes, size: int, path: Path) -> bytes:
        if len(data) != size:
            raise MusterError(f"--send: {path} was changed while it was sent; start it again")
        return data

    def _answer(self) -> dict[str, Any]:
        """The node's next answer, other than that it waits.

        Raises:
            EOFError: there is none.
            MusterError: the node has failed, or says something else.
        """
        assert self._process is not None and self._process.stdout is not None
        while line := self._process.stdout.readline(ANSWER_BYTES):
            _, mark, text = line.partition(MARK)
            if not mark:
                continue
            try:
                answer = json.loads(text)
            except (ValueError, RecursionError):
                answer = None
            if not fits(answer, ANSWER):
                raise MusterError(f"{self.name}: what it says is no answer of Muster's: {line!a}")
            if "failed" in answer:
                raise MusterError(f"{self.name}: {answer['failed'][:QUOTED_CHARACTERS]}")
            if "waits" not in answer:
                return dict(answer)
        raise EOFError


def _write(to: int, data: bytes | bytearray) -> None:
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.write(to, view[done:])
