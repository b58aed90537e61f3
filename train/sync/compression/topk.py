"""Send the largest values only, and add the others to the next step's gradients.

Stich, Cordonnier and Jaggi, Sparsified SGD with Memory (2018).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..buckets.layout import flatten, spread
from .base import Compressor


class TopK(Compressor):
    """Of each bucket every rank sends a share of the values, with their places: what it receives
    grows with the number of ranks."""

    def average(self, key: int, gradients: Sequence[Tensor]) -> None:
        flat = self.with_error(key, flatten(gradients))
        count = max(1, round(self.options.compress_share * len(flat)))
        places = flat.abs().topk(count, sorted=False).indices
        values = flat[places]
        # one collective for both, in bytes: their types differ
        row = torch.cat([values.view(torch.uint8), places.int().view(torch.uint8)])
        flat[places] = 0
        self.remember(key, "error", flat)
        mean = torch.zeros_like(flat)
        for received in self.all_gather(row):  # in the order of ranks, on every rank
            own, at = received.split([values.nbytes, count * torch.int32.itemsize])
            mean.index_add_(0, at.clone().view(torch.int32), own.clone().view(flat.dtype))
        spread(mean / self.ranks.world_size, gradients)


build = TopK
