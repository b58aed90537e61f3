"""Copy a node's part of the run folder to its leader as it is written, without a shared disk.

A node sends the files that it writes itself, for its ranks and for its host. Node 0, which has rank
0, also sends the files that exist only once in a run. So nodes that share a disk with each other,
but not with the leader, send nothing twice. A growing file is sent from the last position. Any
other file is sent whole, and a reader sees it only when it is complete.
"""

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from launch.deadlines import AGENT_SENDS_FILES_EVERY_S, FILES_TICK_S
from launch.nodes.channel import Channel, running_s, waiting_for
from launch.nodes.messages import File, OddMessage, quoted
from launch.spec import Assignment
from muster import run_files
from muster.errors import UsageError
from muster.run_files import RunFile, claim_on_node
from muster.writing import open_plain, writing

CHUNK_BYTES = 262_144
# The limit of unsent data, so that a slow link does not fill a node's memory.
WAITING_BYTES = 1_000_000
SENT_FILES = tuple(file for file in run_files.FILES if file.sent != "never")


class LogSync:
    """The node's side: finds new data and sends it."""

    def __init__(self, assignment: Assignment) -> None:
        self._run_dir = assignment.spec.run_dir
        self._assignment = assignment
        self._host = socket.gethostname()
        self._sent: dict[Path, tuple[object, int]] = {}  # the version, and how many of its bytes
        self._looked = 0.0
        self._turn: deque[tuple[RunFile, Path]] = deque()  # the files that are next
        self._is_left = False  # whether a file that had its turn has not been sent completely
        self._left_out: set[Path] = set()  # the files that cannot be sent: each is reported once

    def send_news(self, channel: Channel) -> None:
        """Send what has been written since the last call, as far as the link accepts it."""
        if running_s() - self._looked > AGENT_SENDS_FILES_EVERY_S:
            self._looked = running_s()
            self._send(channel)

    def send_rest(self, channel: Channel, patience_s: float) -> None:
        """Send the rest; give up if the other side is gone, or silent for `patience_s`.

        While its disk is slow, the other side may accept nothing for a long time.
        """
        self._turn.clear()  # begin another turn, which includes the new files
        while self._send(channel) and not channel.ended and channel.silent_s <= patience_s:
            time.sleep(FILES_TICK_S)
            channel.put_back(channel.receive())

    def _send(self, channel: Channel) -> bool:
        """Send new data; return whether something is left.

        In each turn, one part of every file is sent. Otherwise a file that grows faster than the
        link accepts it would keep all others waiting. The next call continues the turn.
        """
        while channel.waiting_bytes <= WAITING_BYTES:
            if not self._turn:
                self._turn = deque(self._files())
                self._is_left = False
            while self._turn and channel.waiting_bytes <= WAITING_BYTES:
                self._is_left |= self._try_to_send(*self._turn.popleft(), channel)
            if not self._turn and not self._is_left:
                return False
        return True

    def _try_to_send(self, file: RunFile, path: Path, channel: Channel) -> bool:
        """Send a part of a file; return whether there is more of it."""
        try:
            return self._send_part(file, path, channel)
        except FileNotFoundError:  # removed or renamed in the meantime
            return False
        except OSError as error:  # a program has put something that is not a file in its place
            self._leave_out(path, error)
            return False

    def _leave_out(self, path: Path, error: OSError) -> None:
        if path not in self._left_out:
            self._left_out.add(path)
            print(f"note: {path} was not sent: {error.strerror}", file=sys.stderr, flush=True)

    def _files(self) -> Iterator[tuple[RunFile, Path]]:
        for file in SENT_FILES:
            paths = _paths_on_node(file, self._run_dir, self._assignment, self._host)
            if paths is None:
                paths = file.find(self._run_dir) if self._assignment.index == 0 else []
            yield from ((file, path) for path in paths)

    def _send_part(self, file: RunFile, path: Path, channel: Channel) -> bool:
        facts = path.stat()
        state = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
        version = "" if file.sent == "growing" else state
        before, at = self._sent.get(path, (None, 0))
        if before != version:  # even if the file is empty, since that is information as well
            at = 0
        elif at >= facts.st_size:
            return False
        with waiting_for(str(path)), open_plain(path) as opened:
            opened.seek(at)
            new = opened.read(CHUNK_BYTES)
        is_last = at + len(new) >= facts.st_size
        name = os.fsencode(path.relative_to(self._run_dir))
        channel.send(File(name, at, new, is_last))
        self._sent[path] = (version, at + len(new))
        return bool(new) and not is_last


def _paths_on_node(
    file: RunFile, run_dir: Path, assignment: Assignment, host: str | None
) -> list[Path] | None:
    """The paths of this kind of file that the node writes; None: only node 0 writes such a file."""
    if "{rank}" in file.pattern:
        return [file.path(run_dir, rank=rank) for rank in assignment.ranks]
    if "{node}" in file.pattern:
        return [file.path(run_dir, node=assignment.index)]
    if "{host}" in file.pattern:
        return [] if host is None else [file.path(run_dir, host=host)]
    return None


class ReceivedFiles:
    """The leader's side: it writes the files that the node with this assignment sends."""

    def __init__(self, run_dir: Path, assignment: Assignment) -> None:
        self._run_dir = run_dir
        self._assignment = assignment
        self._received_bytes: dict[bytes, int] = {}  # by the file's name

    def take(self, message: File, host: str | None) -> None:
        """Write a part of a file of this node, which has reported that it is on this host.

        A node that has not reported its host has not begun anything. If it sends a file that
        belongs to a host, the file is from an earlier run, and is dropped.

        Raises:
            OddMessage: this node does not write this file, or the part does not follow the last.
            MusterError: the disk here is full.
        """
        assignment = self._assignment
        name = PurePosixPath(os.fsdecode(message.name))
        path = self._run_dir / name
        file = _file_of(name)
        if file is not None and host is None and "{host}" in file.pattern:
            return
        own = None if file is None else _paths_on_node(file, self._run_dir, assignment, host)
        if file is None or (assignment.index != 0 if own is None else path not in own):
            raise OddMessage(f"a file that it may not write: {quoted(str(name))}")
        end = self._received_bytes.get(message.name, 0)
        if message.at not in (0, end):
            raise OddMessage(f"byte {message.at} of {quoted(str(name))}, of which it sent {end}")
        grows = file.sent == "growing"
        into = path if grows else path.with_name(f"{path.name}.{assignment.index}.partial")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            into.touch(0o600 if file.private else 0o666)  # minus the umask
            with into.open("r+b") as stream:
                stream.seek(message.at)
                stream.write(message.data)
                stream.truncate()
            if not grows and message.last:
                into.replace(path)
        self._received_bytes[message.name] = message.at + len(message.data)


def _file_of(name: PurePosixPath) -> RunFile | None:
    """The kind of file that has this name; None if a node may not send it."""
    is_inside = not name.is_absolute() and ".." not in name.parts and "\0" not in str(name)
    if not is_inside or run_files.is_unfinished(name.name):
        return None
    return next((file for file in SENT_FILES if file.match(str(name)) is not None), None)


def make_room(assignment: Assignment) -> None:
    """Clear the last attempt or another run out of the run folder on a node with its own disk.

    Raises:
        UsageError: the folder has files of another run, which must not be overwritten.
    """
    spec = assignment.spec
    start = assignment.disk_marker.rpartition("-")[2]
    try:
        with waiting_for(str(spec.run_dir)):
            if spec.attempt:
                run_files.archive_attempt(spec.run_dir, spec.attempt - 1)
            else:
                claim_on_node(spec.run_dir, start, overwrite=spec.overwrite, resumed=spec.resumed)
    except UsageError as error:
        raise UsageError(f"{assignment.name}: {error}") from None
