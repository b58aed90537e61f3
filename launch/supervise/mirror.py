"""Bring back, as it is written, what a node without a shared file system puts in its run folder."""

import base64
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from configs.errors import MusterError
from launch.supervise.wire import Wire

EVERY_S = 0.2
CHUNK_BYTES = 262_144
# So much may wait to be sent; a slow link must not fill a node's memory.
WAITING_BYTES = 1_000_000
GROWING = (".out", ".err", ".log", ".jsonl")
# What a node's processes write, and nothing else: a launcher's own records are its own.
FOLDERS = ("agents", "environment", "exits", "metrics", "tensorboard", "traces", "workers")
FILES = ("network.json", "stopped.json", "summary.json")


class Mirror:
    """The node's side: finds what is new and sends it."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._sent: dict[Path, int] = {}  # bytes of files that grow
        self._seen: dict[Path, tuple[int, int]] = {}  # size and time of the others
        self._looked = 0.0

    def send_news(self, wire: Wire) -> None:
        """Send what has been written since the last time, as far as the link takes it."""
        if time.monotonic() - self._looked < EVERY_S:
            return
        self._looked = time.monotonic()
        self._send(wire)

    def send_rest(self, wire: Wire, patience_s: float = 20.0) -> None:
        """Send all that is left; gives up where the other side takes nothing any more."""
        deadline = time.monotonic() + patience_s
        while self._send(wire) and not wire.ended and time.monotonic() < deadline:
            time.sleep(0.01)
            wire.receive()

    def _send(self, wire: Wire) -> bool:
        """Whether something was left unsent."""
        for path in self._files():
            grows = path.suffix in GROWING or path.name.startswith("events")
            try:
                left = self._send_end(path, wire) if grows else self._send_whole(path, wire)
            except FileNotFoundError:  # renamed as we look
                continue
            if left:
                return True
        return False

    def _files(self) -> list[Path]:
        found = [path for name in FILES if (path := self._run_dir / name).exists()]
        for folder in FOLDERS:
            found += sorted((self._run_dir / folder).rglob("*"))
        return [path for path in found if path.is_file() and path.suffix != ".new"]

    def _send_end(self, path: Path, wire: Wire) -> bool:
        if path not in self._sent:  # a file that stays empty tells something, too
            wire.send(file=self._name(path), at=0, data="")
        with path.open("rb") as file:
            at = self._sent.setdefault(path, 0)
            file.seek(at)
            while new := file.read(CHUNK_BYTES):
                if wire.waiting_bytes > WAITING_BYTES:
                    return True
                wire.send(file=self._name(path), at=at, data=base64.b64encode(new).decode())
                at += len(new)
                self._sent[path] = at
        return False

    def _send_whole(self, path: Path, wire: Wire) -> bool:
        state = path.stat().st_size, path.stat().st_mtime_ns
        if self._seen.get(path) == state:
            return False
        if wire.waiting_bytes > WAITING_BYTES:
            return True
        data = path.read_bytes()
        for at in range(0, max(len(data), 1), CHUNK_BYTES):
            part = base64.b64encode(data[at : at + CHUNK_BYTES]).decode()
            wire.send(file=self._name(path), at=at, data=part)
        self._seen[path] = state
        return False

    def _name(self, path: Path) -> str:
        return path.relative_to(self._run_dir).as_posix()


def take(run_dir: Path, message: Mapping[str, Any]) -> None:
    """The launcher's side: write what a node sent.

    Raises:
        MusterError: the node names a file that is not its to write.
    """
    name = PurePosixPath(str(message["file"]))
    inside = name.parts[0] in FOLDERS if len(name.parts) > 1 else str(name) in FILES
    if name.is_absolute() or ".." in name.parts or not inside:
        raise MusterError(f"a node sent a file that is not its own to write: {str(name)!r}")
    path = run_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    at = int(message["at"])
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.seek(at)
        file.write(base64.b64decode(message["data"]))
        if path.suffix not in GROWING:
            file.truncate()
