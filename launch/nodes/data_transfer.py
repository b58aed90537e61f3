"""Have the data of --send on every node before workers start.

`node_data.py` is the nodes' side. First a survey asks where the data may go on each node, and
whether they are there already (`data_places.py`). Then the data go to the nodes that lack them.
Each node takes them from a connection of its own, or, where nodes see the source, copies them by
itself.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from fcntl import F_SETPIPE_SZ, fcntl
from pathlib import Path
from typing import Any, TypeAlias

from rich.filesize import decimal

from configs.settings.launch import Sending
from launch.deadlines import (
    BAR_PRINTED_EVERY_S,
    DATA_LOOKED_AT_EVERY_S,
    NODE_COMPARES_DATA_S,
    NODE_TAKES_DATA_S,
    SENDER_IS_ALIVE_EVERY_S,
)
from launch.nodes import node_data
from launch.nodes.channel import MARK, running_s
from launch.nodes.data_places import DataPlaces
from launch.nodes.data_source import Source
from launch.nodes.survey import Survey, Transport
from muster.errors import MusterError
from muster.printable import on_one_line, printable
from muster.records import fits, is_whole

SMALL_BYTES = 65_536  # a smaller file is sent together with others
PIPE_BYTES = 1 << 20  # also of a large file, between two looks at the progress
ANSWER_BYTES = 65_536
TRANSFERS = 16  # at the same time
# The command that has a node's python3 read a program and then its input; by the node's index.
Command: TypeAlias = Callable[[int], Sequence[str]]


def _is_position(value: Any) -> bool:
    return fits(value, [is_whole]) and len(value) == 2 and min(value) >= 0


ANSWER = ({"at": _is_position}, {"waits": bool}, {"content": str}, {"failed": str})


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
        places = DataPlaces(source, sending, names, survey)
        where = _where(places.by_node, names)
        lacking = {index: places.by_node[index] for index in sorted(places.lacking)}
        if not lacking:
            say(f"data: {where}; nothing is sent: they are there already")
        else:
            if command is None and (unseeing := sorted(places.unseeing & lacking.keys())):
                raise MusterError(
                    f"{', '.join(names[index] for index in unseeing)}: does not see {source.path}, "
                    "from which a job's nodes copy; put it on the file system that all nodes share"
                )
            count = f"{len(lacking)} node{'s' * (len(lacking) > 1)}"
            say(f"sending {source.path} ({decimal(source.bytes)}) to {count}")
            began_s = running_s()
            if command is None:
                _have_copied(source, survey, lacking, names, say)
            else:
                transfers = [
                    _Transfer(source, names[index], place, command(index), index, transport)
                    for index, place in lacking.items()
                ]
                _run_all(transfers, say)
            say(f"data: {where} ({running_s() - began_s:.0f} s)")
    return [places.by_node[index] for index in range(len(names))]


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

    def __call__(self, line: str) -> None:
        if not self._quiet:
            print(on_one_line(line), file=sys.stderr, flush=True)

    def progress(self, sent: Mapping[str, int], total: int) -> None:
        """Print how far the slowest node is; `sent`: bytes, by the names of nodes not done yet."""
        if sent and running_s() >= self._next_s:
            self._next_s = running_s() + BAR_PRINTED_EVERY_S
            slowest = min(sent, key=lambda name: sent[name])
            share = 100 * sent[slowest] // max(total, 1)
            self(f"{share} % of {decimal(total)} are on {slowest}, the slowest node")


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
        sent = {names[i]: state["bytes"] for i, state in states.items() if not state["over"]}
        say.progress(sent, source.bytes)
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
                for transfer in transfers:
                    transfer.end_if_stuck()
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
        self._is_stuck = False
        self._moved_s = running_s()
        self._patience_s = NODE_COMPARES_DATA_S  # before something moves again

    def _expect(self, patience_s: float) -> None:
        """Note that something has moved, and how long the next step may take."""
        self._moved_s = running_s()
        self._patience_s = patience_s

    def end_if_stuck(self) -> None:
        """End it if nothing has moved for too long, as with a disk that hangs."""
        is_started = self._process is not None
        if is_started and not self.is_over and running_s() > self._moved_s + self._patience_s:
            self._is_stuck = True
            self.stop()

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
                self._expect(NODE_COMPARES_DATA_S)
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
        going_on = "the same command goes on from what came"
        if self._is_stuck:
            raise MusterError(
                f"{self.name}: nothing has moved for {self._patience_s:.0f} s; does a disk hang, "
                f"there or here? {going_on}"
            )
        with suppress(EOFError):
            self._answer()  # the node's last words
        if self._is_stopped:
            raise _Ended
        code = process.wait()
        errors.seek(0)
        text = errors.read(ANSWER_BYTES).decode(errors="replace")
        line = self._transport.explain(self._index, code, text)
        came = f"{decimal(self.bytes)} of {decimal(self.source.bytes)}"
        raise MusterError(f"{line}; {came} were on their way: {going_on}")

    def _talk(self, to: int) -> None:
        program = Path(node_data.__file__).read_bytes() + b"\nreceive()\n"
        request = json.dumps(self.source.request(self._place)).encode()
        with suppress(OSError):  # a limit of the user's
            fcntl(to, F_SETPIPE_SZ, PIPE_BYTES)
        self._write(to, b"%d\n%s%s\n" % (len(program), program, request))
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
            self._write(to, b"\n")
        self._write(to, json.dumps(content.result()).encode() + b"\n")
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
                        data = file.read(size)
                        if len(data) != size:
                            raise _changed(path)
                        waiting += data
                        self.bytes += size
                    else:
                        self._write(to, waiting)
                        waiting.clear()
                        self._send_file(to, file.fileno(), offset, entry[2], path)
            offset = 0
            if len(waiting) > SMALL_BYTES:
                self._write(to, waiting)
                waiting.clear()
        self._write(to, waiting)

    def _send_file(self, to: int, file: int, at: int, end: int, path: Path) -> None:
        while at < end:
            sent = os.sendfile(to, file, at, min(end - at, PIPE_BYTES))
            if not sent:
                raise _changed(path)
            at += sent
            self.bytes += sent
            self._expect(NODE_TAKES_DATA_S)

    def _write(self, to: int, data: bytes | bytearray) -> None:
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                done += os.write(to, view[done:])
                self._expect(NODE_TAKES_DATA_S)

    def _answer(self) -> dict[str, Any]:
        """The node's next answer, other than that it waits.

        Raises:
            EOFError: there is none.
            MusterError: the node has failed, or says something else.
        """
        assert self._process is not None and self._process.stdout is not None
        self._expect(NODE_COMPARES_DATA_S)
        while line := self._process.stdout.readline(ANSWER_BYTES):
            self._expect(NODE_COMPARES_DATA_S)
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
                raise MusterError(f"{self.name}: {answer['failed'][:1_000]}")
            if "waits" not in answer:
                return dict(answer)
        raise EOFError


def _changed(path: Path) -> MusterError:
    return MusterError(f"--send: {path} was changed while it was sent; start it again")
