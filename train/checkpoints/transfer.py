"""Send a checkpoint to the ranks that do not see it: in pieces, to one folder on each disk.

On each disk, the first of the ranks that lack the checkpoint makes a folder beside its checkpoints,
and writes there what the source sends. All ranks that lack it read this folder. So a rank holds one
piece in memory, however large the checkpoint is.
"""

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.distributed as dist

from muster.errors import MusterError

from ..distributed import agreement
from ..distributed.agreement import DISK_PATIENCE_S
from ..sync.ranks import Ranks
from .storage import MANIFEST, UNFINISHED, IntactCheckpoint, read_verified

PIECE_BYTES = 16 * 2**20


@contextmanager
def transferred(
    ranks: Ranks,
    intact: IntactCheckpoint | None,
    folder: Path,
    *,
    firsts: Sequence[int],
    source: int,
    lacking: Sequence[int],
) -> Iterator[IntactCheckpoint | None]:
    """The checkpoint of rank `source` on the ranks `lacking` it, None on others; collective.

    On rank `source`, `intact` is that checkpoint. `firsts` has, for each rank, the first rank with
    the same disk. What was written to `folder` is removed at the end of the context: by then, all
    ranks must have copied what they need.

    Raises:
        MusterError: a disk failed, or is full; on every rank.
    """
    # the ranks on this rank's disk that lack it; the first of them writes
    peers = [rank for rank in lacking if firsts[rank] == firsts[ranks.rank]]
    writer = peers[0] if ranks.rank in lacking else None
    is_source, is_writer = ranks.rank == source, ranks.rank == writer
    places = agreement.gather_results(
        ranks.world_size, lambda: _new_folder(folder) if is_writer else ""
    )
    place = None if writer is None else Path(places[writer])
    received: list[IntactCheckpoint] = []

    def read() -> None:
        if place is not None:
            received.append(read_verified(place))

    own = intact if is_source else None
    target = place if is_writer else None
    try:
        sizes = agreement.gather_results(ranks.world_size, lambda: _sizes(own))[source]
        for name, size in sizes.items():
            _send(ranks, source, own and own.path / name, target and target / name, size)
        agreement.gather_results(ranks.world_size, read, DISK_PATIENCE_S)
        yield received[0] if received else None
    finally:
        if target is not None:
            shutil.rmtree(target, ignore_errors=True)


def _new_folder(folder: Path) -> str:
    with _named_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        suffix = f".{socket.gethostname()}.{os.getpid()}{UNFINISHED}"
        return mkdtemp(prefix="step_", suffix=suffix, dir=folder.absolute())


def _sizes(intact: IntactCheckpoint | None) -> dict[str, int]:
    """The bytes of each file of a checkpoint."""
    if intact is None:
        return {}
    return {name: (intact.path / name).stat().st_size for name in (MANIFEST, *intact.sums)}


def _send(ranks: Ranks, source: int, own: Path | None, target: Path | None, size: int) -> None:
    """Send the file `own` of rank `source` to `target` on each rank that has one."""
    buffer = torch.empty(min(size, PIECE_BYTES), dtype=torch.uint8)
    for begin in range(0, size, PIECE_BYTES):
        piece = buffer[: size - begin]
        data = piece.numpy().data
        agreement.gather_results(
            ranks.world_size, partial(_read, own, begin, data), DISK_PATIENCE_S
        )
        dist.broadcast(piece, source, group=agreement.gloo_group())
        ranks.note("broadcast", piece)
        agreement.gather_results(ranks.world_size, partial(_append, target, data), DISK_PATIENCE_S)


def _read(path: Path | None, begin: int, data: memoryview) -> None:
    if path is not None:
        with _named_errors(path), path.open("rb") as file:
            file.seek(begin)
            if file.readinto(data) < len(data):
                raise OSError("the file became shorter while it was being read")


def _append(path: Path | None, data: memoryview) -> None:
    if path is not None:
        with _named_errors(path), path.open("ab") as file:  # some disks fail only when it is closed
            file.write(data)


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f"{path} on {socket.gethostname()}"
        raise MusterError(f"{where}: {error.strerror or error}") from None
