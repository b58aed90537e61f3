"""Read what workers and users append to a run's files: output and requests.

How requests work: the asking process creates an empty file for the answer, and appends a line to
requests.jsonl. The run's leader reads requests.jsonl twice a second, and appends its answer to the
answer file. Both files are opened again for each look, because file servers cache their content.
Neither is ever replaced. Nothing in them is executed: a request only names a question, in JSON.
"""

import json
import math
import re
import select
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from configs import console
from launch.deadlines import BAR_PRINTED_EVERY_S, NEW_LOGS_LISTED_EVERY_S, REQUESTS_READ_EVERY_S
from launch.nodes.messages import REFUSED, QuestionId
from launch.runs.run_record import changed_at_ns
from muster import json_output, records
from muster.errors import ReaderGone, silence
from muster.printable import on_one_line
from muster.run_files import ANSWER, ERRORS, OUTPUT, RANK_END, REQUESTS, RunFile
from muster.worker.lost_peer import CONSEQUENCE
from muster.writing import open_plain, tail

TAIL_BYTES = 32_768
READ_BYTES = 4_194_304  # of one file at a time
PIPE_BYTES = 4_096  # bytes that a pipe accepts at once if it accepts any (PIPE_BUF)
LINE_BYTES = 65_536  # a longer line is shown in pieces
CONSEQUENCE_MARK = CONSEQUENCE.encode()
TRACEBACK = b"Traceback (most recent call last):"
TORCHS_PREFIX = re.compile(rb"^\[rank\d+\]: ?")  # in front of each line of a traceback
CONSEQUENCES = re.compile(b"^%b.*\n?" % re.escape(CONSEQUENCE_MARK), re.MULTILINE)
# A bar as drawn by tqdm or rich. In a file, bars are of no use, and neither are colors.
PROGRESS_BAR = re.compile(rb"\d%\|.*\| *\d+/\d+ \[|\d+it \[\d\d:\d\d|\xe2\x94\x81{8}")
ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
AFTER_A_BAR = re.compile(b"(?<=[^\n])%b.*" % re.escape(CONSEQUENCE_MARK))  # on the bar's line


@dataclass
class _File:
    """The state of one file: one worker's output, or the requests."""

    path: Path
    rank: int = 0
    stream: str = "stdout"  # or "stderr"
    inode: int = 0
    offset: int = 0
    unfinished: bytes = b""  # an unfinished line, or a progress bar as last drawn
    printed_bar: bytes | None = None  # the bar in that line as last printed
    printed_at: float = -math.inf
    traceback: frozenset[bytes] = frozenset()  # of the error that ended its worker


class Follower:
    """Copies new bytes of workers' files to this process's stdout and stderr.

    Without `prefixes`, only rank 0 is shown, unchanged. With them, every rank is shown line by
    line, each line after `node.rank| `, and a progress bar, which redraws one line, becomes a line
    every few seconds. Everything else is passed on unchanged, including colours and other escapes;
    but with prefixes, a file or a pipe gets no progress bars and no escapes.
    Files and ranks may appear at any time, and be replaced. `consequences`: also show what a worker
    prints because it lost another one; without it, the user sees only the cause. With prefixes, the
    traceback with which a worker ended counts as a consequence, because the process that leads or
    follows the run prints the traceback of the cause last. `as_json`: each line becomes a document.
    `tail`: how many of the last lines to show of files that exist at the beginning; None: all.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        prefixes: bool = False,
        only: int | None = None,
        consequences: bool = False,
        as_json: bool = False,
        tail: int | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._prefixes = prefixes
        self._consequences = consequences
        self._as_json = as_json
        self._last_lines = tail  # of each file that exists already; None: all
        self._only = only if only is not None or prefixes else 0
        self._files: dict[tuple[bool, int], _File] = {}  # in key order: stdout by rank, then stderr
        self._changed_ns = 0  # when the folder last changed
        self._listed = 0.0
        self._waiting = memoryview(b"")  # bytes that a slow reader has not taken yet
        self._stream: BinaryIO  # where the waiting bytes go
        self.nodes: Mapping[int, str] = {}  # the node of each rank, once it is known
        self.tail = b""  # the end of the output shown, without prefixes
        self.error: OSError | None = None  # why something could not be shown, such as a full disk

    def poll(self, *, last: bool = False) -> None:
        """Show new output since the last call; with `last`, all of it, including unfinished lines.

        Without `last`, this does not wait for a reader, such as a stopped terminal: data that the
        reader does not accept yet stays in the files.

        Raises:
            BrokenPipeError: the reader of the output has gone.
        """
        if not self._write_waiting(wait=last):
            return
        self._list(anew=last)
        for key in sorted(self._files):
            self._show(self._files[key], last=last)

    def _list(self, *, anew: bool) -> None:
        """Find new files."""
        changed_ns = changed_at_ns(OUTPUT.path(self._run_dir, rank=0).parent)
        now = time.monotonic()
        if (
            not anew
            and changed_ns == self._changed_ns
            and now - self._listed < NEW_LOGS_LISTED_EVERY_S
        ):
            return
        self._changed_ns = changed_ns
        self._listed = now
        for kind, stream in ((OUTPUT, "stdout"), (ERRORS, "stderr")):
            for rank, path in self._present(kind).items():
                key = (stream == "stderr", rank)
                if key not in self._files:
                    self._files[key] = _File(path, rank, stream)
                    if self._last_lines is not None:
                        _skip_to_last_lines(self._files[key], self._last_lines)
        self._last_lines = None  # files that appear later are shown in full

    def _present(self, kind: RunFile) -> dict[int, Path]:
        """The files of this kind that are to be shown, by rank."""
        if self._only is None:
            return kind.by_number(self._run_dir)
        path = kind.path(self._run_dir, rank=self._only)
        return {self._only: path} if path.exists() else {}

    def _show(self, file: _File, *, last: bool) -> None:
        """Show a file's new data; with `last`, all of it, even if the last line is unfinished."""
        stream = getattr(sys, file.stream).buffer
        while not self._waiting and _unread_bytes(file) and (new := _read(file)):
            if not self._prefixes:
                self.tail = (self.tail + new)[-TAIL_BYTES:]
            self._stream = stream
            self._waiting = memoryview(self._to_show(file, new))
            self._write_waiting(wait=last)
            if not last:
                break
        if last and file.unfinished:
            self._write(stream, self._prefixed(file, b"\n"))

    def _write_waiting(self, *, wait: bool) -> bool:
        """Write as much as readers accept, or all with `wait`; return whether nothing is left."""
        while self._waiting and (wait or _is_ready(self._stream)):
            self._write(self._stream, self._waiting[:PIPE_BYTES])
            self._waiting = self._waiting[PIPE_BYTES:]
        return not self._waiting

    def _write(self, stream: BinaryIO, what: bytes | memoryview) -> None:
        console.end_status()
        try:
            stream.write(what)
            while not _flushed(stream):
                select.select([], [stream], [])
        except OSError as error:
            silence(stream.fileno())
            if isinstance(error, BrokenPipeError):
                raise ReaderGone(*error.args) from None
            # other errors, such as a closed terminal or a full disk under the log, do not end a run
            self.error = self.error or error

    def _to_show(self, file: _File, new: bytes) -> bytes:
        if self._prefixes:
            return self._prefixed(file, new)
        return new if self._consequences else CONSEQUENCES.sub(b"", AFTER_A_BAR.sub(b"", new))

    def _prefixed(self, file: _File, new: bytes) -> bytes:
        node = self.nodes.get(file.rank, "node?")
        prefix = f"{on_one_line(node)}.{file.rank}| ".encode()
        lines = _lines(file, new)
        if not (self._as_json or getattr(sys, file.stream).isatty()):
            lines = (ESCAPE.sub(b"", line) for line in lines if not PROGRESS_BAR.search(line))
        if not self._consequences:
            lines = (
                line.partition(CONSEQUENCE_MARK)[0]
                for line in lines
                if not line.startswith(CONSEQUENCE_MARK)
            )
            lines = self._without_traceback(file, lines)
        if self._as_json:
            for line in lines:
                text = line.decode(errors="replace")
                json_output.emit("output", node=node, rank=file.rank, stream=file.stream, text=text)
            return b""
        shown = [line + b"\n" for line in lines]
        self.tail = b"".join([self.tail, *shown])[-TAIL_BYTES:]
        return b"".join(prefix + line for line in shown)

    def _without_traceback(self, file: _File, lines: Iterator[bytes]) -> Iterator[bytes]:
        may_end = file.stream == "stderr"  # the record is written before it, and read once a chunk
        for line in lines:
            if may_end and not file.traceback and TRACEBACK in line:
                may_end = False
                path = RANK_END.path(self._run_dir, rank=file.rank)
                record = records.read(RANK_END, path, "traceback") or {"traceback": ""}
                file.traceback = frozenset(record["traceback"].encode().splitlines()) - {b""}
            if TORCHS_PREFIX.sub(b"", line) not in file.traceback:
                yield line


class Request(msgspec.Struct, frozen=True):
    """A question about a run; its id also names the file for the answer."""

    id: QuestionId
    ask: str = ""


class RequestFile:
    """The requests to a run's present leader; requests to an earlier leader do not count."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._read_at = 0.0
        self._file = _File(REQUESTS.path(run_dir))
        with suppress(OSError):  # created at the start, since file servers cache its absence
            self._file.path.parent.mkdir(parents=True, exist_ok=True)
            self._file.path.touch()
            self._file.offset = self._file.path.stat().st_size

    def new(self) -> list[Request]:
        """The requests since the last call."""
        now = time.monotonic()
        if now - self._read_at < REQUESTS_READ_EVERY_S:
            return []
        self._read_at = now
        whole, end, self._file.unfinished = (self._file.unfinished + _read(self._file)).rpartition(
            b"\n"
        )
        requests = []
        for line in whole.splitlines() if end else ():
            with suppress(*REFUSED):
                requests.append(msgspec.json.decode(line, type=Request))
        return requests

    def answer(self, request: str, **message: Any) -> None:
        """Append a line to the answer; the asking process may be gone."""
        with suppress(OSError), ANSWER.path(self._run_dir, name=request).open("r+b") as file:
            file.seek(0, 2)
            file.write(json.dumps(message).encode() + b"\n")


def _lines(file: _File, new: bytes) -> Iterator[bytes]:
    """The lines of `new` to be shown, without line ends."""
    *lines, unfinished = (file.unfinished + new).split(b"\n")
    for line in lines:
        bar = _drawn_last(line)
        if bar is None or bar != file.printed_bar:
            yield line if bar is None else bar
        file.printed_bar = None
    bar = _drawn_last(unfinished)
    if bar is not None:
        unfinished = b"\r" + bar + b"\r" * unfinished.endswith(b"\r") if bar else b""
    if bar and bar != file.printed_bar and time.monotonic() - file.printed_at > BAR_PRINTED_EVERY_S:
        yield bar
        file.printed_bar = bar
        file.printed_at = time.monotonic()
    if len(unfinished) > LINE_BYTES:
        yield unfinished.strip(b"\r")
        unfinished = b""
    file.unfinished = unfinished


def _skip_to_last_lines(file: _File, count: int) -> None:
    """Skip the beginning of a file, except for its last `count` lines."""
    end = tail(file.path, READ_BYTES)
    last = b"".join(end.splitlines(keepends=True)[-count:] if count else [])
    with suppress(OSError):
        state = file.path.stat()
        file.inode = state.st_ino
        file.offset = max(state.st_size - len(last), 0)


def _drawn_last(line: bytes) -> bytes | None:
    """The last non-blank version of a line that was drawn several times; None for other lines."""
    if b"\r" not in line:
        return None
    drawn = line.rstrip(b"\r ")
    return drawn[drawn.rfind(b"\r") + 1 :]


def _unread_bytes(file: _File) -> int:
    """The number of bytes added to a file; a new file of that name is read from its beginning."""
    try:
        state = file.path.stat()
    except OSError:  # moved in the meantime, or the file server does not answer
        return 0
    if state.st_ino != file.inode or state.st_size < file.offset:
        file.inode = state.st_ino
        file.offset = 0
        file.unfinished = b""
        file.printed_bar = None
    return state.st_size - file.offset


def _read(file: _File) -> bytes:
    try:
        with open_plain(file.path) as opened:
            opened.seek(file.offset)
            new = opened.read(READ_BYTES)
    except OSError:
        return b""
    file.offset += len(new)
    return new


def _is_ready(stream: BinaryIO) -> bool:
    """Whether the stream accepts data without waiting."""
    try:
        return bool(select.select([], [stream], [], 0)[1])
    except (OSError, ValueError):  # closed, or a test's stream without a descriptor
        return True


def _flushed(stream: BinaryIO) -> bool:
    """Whether everything was written; false if other code has made `stream` non-blocking."""
    try:
        stream.flush()
    except BlockingIOError:
        return False
    return True
