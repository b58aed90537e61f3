"""What ranks exchange to save and resume, since nodes need not share a file system."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TypeVar

import torch
from torch import Tensor

from muster.errors import UsageError
from muster.run_files import SEEN

from ..distributed import agreement
from ..distributed.plain_objects import encoded
from ..sync.ranks import Ranks

T = TypeVar("T")
ALL = "all"  # stands for a rank: a value on which all ranks agree


def gather(ranks: Ranks, value: T) -> list[T]:
    """The value of every rank, on every rank: two small collectives. See `plain_objects`."""
    if ranks.world_size > 1:
        ranks.ledger.control["all_gather"] += len(encoded(value))
    return agreement.gather(ranks.world_size, value)


def sees_first(folder: Path, ranks: Ranks, place: str) -> bool:
    """Whether this rank is the first of those that see the same `folder`, which rank 0 makes.

    Rank 0 is one. Of the ranks that do not see its folder, the first of each `place` (a host's
    name) is one, too. Collective: small values alone are sent.

    Raises:
        UsageError: rank 0 cannot make the folder; on other ranks PeerFailed.
    """

    def make_mark() -> str:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            prefix = SEEN.path(folder, name="").name
            with NamedTemporaryFile(prefix=prefix, dir=folder, delete=False) as mark:
                return mark.name
        except OSError as error:
            raise UsageError(f"{folder}: {error.strerror}") from None

    mark = Path(agreement.of_first(ranks.rank, ranks.world_size, make_mark))
    # the hosts of the ranks that do not see it
    hosts = agreement.of_each(ranks.world_size, lambda: "" if mark.exists() else place)
    if ranks.rank == 0:
        mark.unlink(missing_ok=True)
    host = hosts[ranks.rank]
    return ranks.rank == 0 or (host != "" and hosts.index(host) == ranks.rank)


def share(ranks: Ranks, source: int, value: T) -> T:
    """The value of rank `source`, on every rank: two collectives, its length and the value."""
    if ranks.rank == source and ranks.world_size > 1:
        ranks.ledger.control["broadcast"] += len(encoded(value))
    return agreement.share(ranks.rank, ranks.world_size, source, value)


def gather_by_rank(ranks: Ranks, state: Mapping[str, Tensor], *, keeps: bool) -> dict[str, Tensor]:
    """CPU copies of every rank's tensors, as `RANK/NAME`, or `all/NAME` if equal. Collective.

    `state` has the same names and shapes on every rank. A rank with `keeps` false returns no
    tensors, and none are sent to it. Small checksums are gathered first. Then each tensor that
    differs is sent to each rank that keeps: one gather for each of both. The host waits for the
    device once for each tensor.
    """
    tensors = {name: state[name].detach() for name in sorted(state)}
    digests = {name: _digest(tensor.cpu()) for name, tensor in tensors.items()}
    keeping, digests_of = zip(*gather(ranks, (keeps, digests)), strict=True)
    keepers = [rank for rank, keeps_them in enumerate(keeping) if keeps_them]
    copies: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if len({of_rank[name] for of_rank in digests_of}) == 1:
            if keeps:
                copies[f"{ALL}/{name}"] = tensor.to("cpu", copy=True).contiguous()
            continue
        sent = tensor.cpu().contiguous()
        for keeper in keepers:
            ranks.ledger.control[f"gather to rank {keeper}"] += sent.nbytes
            rows = agreement.collect(ranks.rank, ranks.world_size, keeper, sent)
            copies |= {f"{rank}/{name}": row for rank, row in enumerate(rows)}
    return copies


def tensors_of_rank(copies: Mapping[str, Tensor], rank: int | None) -> dict[str, Tensor]:
    """Copies of the tensors of `rank` from `gather_by_rank`; None: of those that all share."""
    parts = [(path.partition("/"), tensor) for path, tensor in copies.items()]
    return {name: tensor.clone() for (owner, _, name), tensor in parts if owner in (ALL, str(rank))}


def _digest(tensor: Tensor) -> str:
    data = tensor.contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().data).hexdigest()
