"""Show, as it is written, what workers write into their files."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from configs.run_files import ERRORS, OUTPUT

TAIL_BYTES = 32_768


class Follower:
    """Copies new bytes of workers' files to this process's stdout and stderr.

    Without `prefixes` only rank 0 is shown, as it is; with them every rank, line by line, each
    after `node.rank| `. Files and ranks may come into being at any time.
    """

    def __init__(self, run_dir: Path, *, prefixes: bool = False, only: int | None = None) -> None:
        self._run_dir = run_dir
        self._prefixes = prefixes
        self._only = only if only is not None or prefixes else 0
        self._offsets: dict[Path, int] = {}
        self._begun: dict[Path, bytes] = {}  # of lines whose end has not come yet
        self.nodes: Mapping[int, str] = {}  # the node of each rank, once it is known
        self.tail = b""  # the end of what was shown, without prefixes

    def poll(self, *, last: bool = False) -> None:
        """Show what came since the last time; with `last` also lines without an end.

        Raises:
            BrokenPipeError: whoever read what is shown has gone.
        """
        rank = "*" if self._only is None else f"{self._only:05d}"
        for file, stream in ((OUTPUT, sys.stdout.buffer), (ERRORS, sys.stderr.buffer)):
            for path in sorted(self._run_dir.glob(file.pattern.format(rank=rank))):
                if new := self._new(path):
                    self.tail = (self.tail + new)[-TAIL_BYTES:]
                    _write(stream, self._prefixed(path, new) if self._prefixes else new)
        if last:
            for path in [path for path, begun in self._begun.items() if begun]:
                stream = sys.stdout.buffer if path.suffix == ".out" else sys.stderr.buffer
                _write(stream, self._prefixed(path, b"\n"))

    def _new(self, path: Path) -> bytes:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            new = file.read()
        self._offsets[path] = self._offsets.get(path, 0) + len(new)
        return new

    def _prefixed(self, path: Path, new: bytes) -> bytes:
        *lines, self._begun[path] = (self._begun.get(path, b"") + new).split(b"\n")
        rank = int(path.stem.removeprefix("rank_"))
        prefix = f"{self.nodes.get(rank, 'node?')}.{rank}| ".encode()
        return b"".join(prefix + line + b"\n" for line in lines)


def _write(stream: BinaryIO, what: bytes) -> None:
    try:
        stream.write(what)
        stream.flush()
    except OSError as error:
        _silence(stream)
        if isinstance(error, BrokenPipeError):
            raise  # but a run outlives a closed terminal, or a full disk under its log


def _silence(stream: BinaryIO) -> None:
    """Let what is still to be written to `stream` go nowhere, rather than fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
