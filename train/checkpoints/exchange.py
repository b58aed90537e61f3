"""What checkpoints need of other ranks: nodes need not share a file system to save or to resume."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from muster.errors import UsageError
from muster.run_files import SEEN

from ..distributed.exit_guard import PeerFailed
from ..distributed.patience import wait_for_all
from ..sync.ranks import Ranks

Files = dict[str, dict[str, Tensor]]
ALL = "all"  # in the place of a rank: they agree


def gather_text(ranks: Ranks, text: str, device: torch.device) -> list[str]:
    """The text of every rank, on every rank."""
    data = text.encode()
    sizes = ranks.all_gather(torch.tensor([len(data)], device=device)).flatten().tolist()
    row = torch.zeros(max(1, *sizes), dtype=torch.uint8)
    if data:
        row[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    rows = ranks.all_gather(row.to(device)).cpu()
    return [bytes(own[:size].numpy()).decode() for own, size in zip(rows, sizes, strict=True)]


def sees_first(folder: Path, ranks: Ranks, place: str) -> bool:
    """Whether this rank is the first of those that see the same `folder`, which rank 0 makes.

    Rank 0 is, and one rank of each `place`, a host's name, with a disk of its own. Collective.

    Raises:
        UsageError: rank 0 cannot make the folder; on other ranks PeerFailed.
    """
    mark, problem = "", ""
    if ranks.rank == 0:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, mark = tempfile.mkstemp(prefix=SEEN.path(folder, name="").name, dir=folder)
            os.close(handle)
        except OSError as error:
            problem = f"{folder}: {error.strerror}"
    wait_for_all(ranks.world_size)
    mark, problem = json.loads(gather_text(ranks, json.dumps([mark, problem]), ranks.device)[0])
    if problem:
        raise UsageError(problem) if ranks.rank == 0 else PeerFailed(f"rank 0: {problem}")
    own = "" if Path(mark).exists() else place
    wait_for_all(ranks.world_size)
    hosts = gather_text(ranks, own, ranks.device)  # of those that do not see it
    if ranks.rank == 0:
        Path(mark).unlink(missing_ok=True)
    return ranks.rank == 0 or (own != "" and hosts.index(own) == ranks.rank)


def share(
    ranks: Ranks, source: int, files: Files, state: dict[str, Any], device: torch.device
) -> tuple[Files, dict[str, Any]]:
    """The tensors and the state that the rank `source` has, on every rank."""
    if ranks.world_size == 1:
        return files, state
    mine = ""
    if ranks.rank == source:
        forms = {
            file: {name: [str(one.dtype), list(one.shape)] for name, one in tensors.items()}
            for file, tensors in files.items()
        }
        mine = json.dumps({"forms": forms, "state": state})
    reply = json.loads(gather_text(ranks, mine, device)[source])
    received: Files = {}
    for file, tensors in reply["forms"].items():
        received[file] = {}
        for name, (dtype, shape) in tensors.items():
            if ranks.rank == source:
                tensor = files[file][name].to(device)
            else:
                tensor = torch.empty(
                    shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=device
                )
            if tensor.numel():
                # bytes: some backends know fewer types than checkpoints hold
                flat = tensor.contiguous().view(-1).view(torch.uint8)
                dist.broadcast(flat, src=source)
            received[file][name] = tensor.cpu()
    return received, reply["state"]


def gather_own(
    ranks: Ranks, state: Mapping[str, Tensor], device: torch.device, *, keeps: bool
) -> dict[str, Tensor]:
    """Copies on the CPU of every rank's tensors, as `RANK/NAME`, or `all/NAME` where all agree.

    `state` has the same names and forms on every rank. A rank that does not keep them has none.
    """
    own = {name: _digest(tensor) for name, tensor in sorted(state.items())}
    if not own:
        return {}
    digests = [json.loads(text) for text in gather_text(ranks, json.dumps(own), device)]
    retained: dict[str, Tensor] = {}
    for name in own:
        if len({one[name] for one in digests}) == 1:
            rows = {ALL: state[name].detach()}
        else:
            gathered = ranks.all_gather(state[name].detach().to(device).contiguous().view(-1))
            rows = {str(rank): row.view(state[name].shape) for rank, row in enumerate(gathered)}
        if keeps:
            for rank, row in rows.items():
                retained[f"{rank}/{name}"] = row.to("cpu", copy=True).contiguous()
    return retained


def own_of(retained: Mapping[str, Tensor], rank: int | None) -> dict[str, Tensor]:
    """What `gather` kept of this rank; None: only what all had."""
    found = {}
    for full, tensor in retained.items():
        whose, _, name = full.partition("/")
        if whose == ALL or whose == str(rank):
            found[name] = tensor
    return found


def _digest(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()
