"""What each rank remembers reaches the ranks that write; what is the same on all is kept once."""

import hashlib
import json
from collections.abc import Mapping

import torch
from torch import Tensor

from ..sync.ranks import Ranks
from .exchange import gather_text

ALL = "all"


def gather(
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


def own(retained: Mapping[str, Tensor], rank: int | None) -> dict[str, Tensor]:
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
