"""What ranks exchange to save and resume, since nodes need not share a file system."""

import hashlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from torch import Tensor

from muster.errors import UsageError
from muster.run_files import DISK_PROBE

from ..distributed import agreement
from ..sync.ranks import Ranks

ALL = "all"  # stands for a rank: a value on which all ranks agree
GROUP_BYTES = 4 * 2**20  # of small tensors that are sent together


def first_on_disk(folder: Path, ranks: Ranks, host: str) -> list[int]:
    """For each rank, the first rank that sees the same `folder`, which rank 0 makes.

    Ranks that do not see rank 0's folder are taken to see the same one if their `host` is the same.
    Collective: only small values are sent.

    Raises:
        UsageError: rank 0 cannot make the folder; on other ranks PeerFailed.
    """

    def make_mark() -> str:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            prefix = DISK_PROBE.path(folder, name="").name
            with NamedTemporaryFile(prefix=prefix, dir=folder, delete=False) as mark:
                return mark.name
        except OSError as error:
            raise UsageError(f"{folder}: {error.strerror}") from None

    mark = Path(agreement.broadcast_result(ranks.rank, ranks.world_size, make_mark))
    # the hosts of the ranks that do not see it
    hosts = agreement.gather_results(ranks.world_size, lambda: "" if mark.exists() else host)
    if ranks.rank == 0:
        mark.unlink(missing_ok=True)
    return [hosts.index(host) if host else 0 for host in hosts]


def gather_by_rank(
    ranks: Ranks, tensors: Mapping[str, Tensor], *, keeps: bool
) -> dict[str, Tensor]:
    """CPU copies of every rank's tensors, as `RANK/NAME`, or `all/NAME` if equal. Collective.

    `tensors` have the same names and types on every rank. A rank with `keeps` false returns none,
    and none are sent to it. Small checksums are gathered first. Then tensors that differ are sent
    to each rank that keeps copies, with one gather for each large tensor or group of small ones.
    The host waits for the device once for each tensor.
    """
    on_host = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    forms = {name: (_digest(tensor), tuple(tensor.shape)) for name, tensor in on_host.items()}
    views = agreement.gather(ranks.world_size, (keeps, forms))
    forms_of = [forms for _, forms in views]
    differing = [name for name in on_host if any(of[name] != forms_of[0][name] for of in forms_of)]
    copies = {
        f"{ALL}/{name}": tensor.clone()
        for name, tensor in on_host.items()
        if keeps and name not in differing
    }
    sizes_of = [
        {name: prod(forms[name][1]) * on_host[name].itemsize for name in differing}
        for forms in forms_of
    ]
    largest = {name: max(sizes[name] for sizes in sizes_of) for name in differing}
    for names in _groups(largest):
        # on each rank the bytes of its tensors, one after the other
        parts_of = [[sizes[name] for name in names] for sizes in sizes_of]
        data = torch.cat([_bytes(on_host[name]) for name in names])
        sent = data.new_zeros(max(map(sum, parts_of)))
        sent[: len(data)] = data
        for keeper in (rank for rank, (is_keeper, _) in enumerate(views) if is_keeper):
            ranks.ledger.control[f"gather to rank {keeper}"] += sent.nbytes
            rows = agreement.collect(ranks.rank, ranks.world_size, keeper, sent)
            for rank, row in enumerate(rows):
                parts = row[: sum(parts_of[rank])].split(parts_of[rank])
                for name, part in zip(names, parts, strict=True):
                    copy = part.clone().view(on_host[name].dtype)
                    copies[f"{rank}/{name}"] = copy.view(forms_of[rank][name][1])
    return copies


def _groups(sizes: Mapping[str, int]) -> list[list[str]]:
    """Names of tensors of these sizes, in groups of a few MB or of one larger tensor."""
    groups: list[list[str]] = []
    used = 0
    for name, size in sizes.items():
        if not groups or used + size > GROUP_BYTES:
            groups.append([])
            used = 0
        groups[-1].append(name)
        used += size
    return groups


def tensors_of_rank(copies: Mapping[str, Tensor], rank: int | None) -> dict[str, Tensor]:
    """Copies of the tensors of `rank` from `gather_by_rank`; None: only of those that all share."""
    parts = [(path.partition("/"), tensor) for path, tensor in copies.items()]
    return {name: tensor.clone() for (owner, _, name), tensor in parts if owner in (ALL, str(rank))}


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(_bytes(tensor).numpy().data).hexdigest()
