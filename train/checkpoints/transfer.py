"""Send a checkpoint to the ranks that do not see it: in pieces, to one file on each of their disks.

On each disk the first of the ranks that lack it makes a folder beside its checkpoints, and writes
there what the source sends. All of them read it. So a rank holds one piece in memory, however large
the checkpoint is.
"""

import os
import shutil
import socket
from collections.abc import Callable, Collection
from io import FileIO
from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.distributed as dist

from muster.errors import MusterError

from ..distributed import agreement
from ..distributed.agreement import DISK_PATIENCE_S
from ..sync.ranks import Ranks
from .exchange import first_on_disk
from .storage import MANIFEST, UNFINISHED, IntactCheckpoint, checksums, read_verified

PIECE_BYTES = 16 * 2**20


def send(
    ranks: Ranks,
    checkpoint: Path | None,
    folder: Path,
    *,
    source: int,
    lacking: Collection[int],
) -> tuple[IntactCheckpoint | None, Path | None]:
    """Rank `source`'s checkpoint, on the ranks `lacking` it; collective.

    On other ranks it is None. The second part is the folder in `folder` to which this rank has
    written it, if it did. Remove it when all ranks have copied what they need, since others may
    read it, too.

    Raises:
        MusterError: a disk failed, or is full; on every rank.
    """
    place, writes = _place(ranks, folder, lacking)
    own = checkpoint if ranks.rank == source else None
    try:
        sizes = agreement.of_each(ranks.world_size, lambda: _sizes(own))[source]
        failed = ""
        for name, size in sizes.items():
            path = None if own is None else own / name
            if writes and place is not None:
                path = place / name
            failed = _stream(ranks, source, path, size) or failed
        received: list[IntactCheckpoint] = []

        def require_written() -> None:
            if failed:
                raise MusterError(failed)

        def load() -> None:
            if place is not None:
                received.append(read_verified(place))

        agreement.of_each(ranks.world_size, require_written, DISK_PATIENCE_S)
        agreement.of_each(ranks.world_size, load, DISK_PATIENCE_S)
    except BaseException:
        if writes and place is not None:
            shutil.rmtree(place, ignore_errors=True)
        raise
    return (received[0] if received else None), (place if writes else None)


def _place(ranks: Ranks, folder: Path, lacking: Collection[int]) -> tuple[Path | None, bool]:
    """From which folder this rank will read, if it is `lacking`; and whether it writes there."""
    firsts = first_on_disk(folder, ranks, socket.gethostname())
    # of those that lack it, the first on this rank's disk
    peers = (rank for rank in sorted(lacking) if firsts[rank] == firsts[ranks.rank])
    writer = next(peers, -1) if ranks.rank in lacking else -1

    def make() -> str:
        if writer != ranks.rank:
            return ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            suffix = f".{socket.gethostname()}.{os.getpid()}{UNFINISHED}"
            return mkdtemp(prefix="step_", suffix=suffix, dir=folder.absolute())
        except OSError as error:
            raise MusterError(f"{folder}: {error.strerror}") from None

    places = agreement.of_each(ranks.world_size, make)
    return (Path(places[writer]) if writer >= 0 else None), writer == ranks.rank


def _sizes(checkpoint: Path | None) -> dict[str, int]:
    """The bytes of each file of a checkpoint."""
    if checkpoint is None:
        return {}
    names = [MANIFEST, *checksums(checkpoint)]
    return {name: (checkpoint / name).stat().st_size for name in names}


def _stream(ranks: Ranks, source: int, path: Path | None, size: int) -> str:
    """Send the file `path` of rank `source`, to `path` on others that have one; what went wrong.

    A rank whose disk fails takes part to the end, since the others wait for it.
    """
    disk = _Disk(path, reads=ranks.rank == source)
    buffer = torch.zeros(min(size, PIECE_BYTES), dtype=torch.uint8)
    for begin in range(0, size, PIECE_BYTES):
        piece = buffer[: size - begin]
        data = piece.numpy().data
        if ranks.rank == source:
            disk.move(data)
        agreement.wait_for_all(ranks.world_size, DISK_PATIENCE_S)  # for the slowest disk
        dist.broadcast(piece, source, group=agreement.gloo_group())
        ranks.note("broadcast", piece)
        if ranks.rank != source:
            disk.move(data)
    disk.close()
    return disk.failed


class _Disk:
    """A file to read or to write in pieces, or none; after its first error it does nothing."""

    def __init__(self, path: Path | None, *, reads: bool) -> None:
        self.failed = ""  # why
        self._path = path
        self._reads = reads
        self._file: FileIO | None = None
        self._try(self._open)

    def move(self, data: memoryview) -> None:
        """Fill `data` from the file, or write it there."""
        self._try(lambda: self._move(data))

    def close(self) -> None:
        if self._file is not None:
            self._try(self._file.close)  # some file systems tell only now that a write failed

    def _try(self, act: Callable[[], None]) -> None:
        try:
            if not self.failed:
                act()
        except OSError as error:
            self.failed = f"{self._path} on {socket.gethostname()}: {error.strerror or error}"

    def _open(self) -> None:
        if self._path is not None:
            self._file = FileIO(self._path, "rb" if self._reads else "wb")

    def _move(self, data: memoryview) -> None:
        if self._file is None:
            return
        while data:
            count = self._file.readinto(data) if self._reads else self._file.write(data)
            if not count:
                raise OSError("it became shorter while it was read")
            data = data[count:]
