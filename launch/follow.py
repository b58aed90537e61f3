"""Show, as it is written, what rank 0 writes into its files."""

import os
import sys
from pathlib import Path
from typing import BinaryIO

TAIL_BYTES = 32_768


class Follower:
    """Copies new bytes of files that may not exist yet to this process's stdout and stderr."""

    def __init__(self, out: Path, err: Path) -> None:
        self._streams: list[tuple[Path, BinaryIO]] = [
            (out, sys.stdout.buffer),
            (err, sys.stderr.buffer),
        ]
        self._offsets = {out: 0, err: 0}
        self.tail = b""  # the end of what was shown

    def poll(self) -> None:
        """Show what came since the last time.

        Raises:
            BrokenPipeError: whoever read what is shown has gone.
        """
        for path, stream in self._streams:
            try:
                with path.open("rb") as file:
                    file.seek(self._offsets[path])
                    new = file.read()
            except FileNotFoundError:
                continue
            if new:
                self._offsets[path] += len(new)
                self.tail = (self.tail + new)[-TAIL_BYTES:]
                try:
                    stream.write(new)
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
