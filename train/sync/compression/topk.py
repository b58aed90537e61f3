"""Send only the largest values, and add the others to the next step's gradients.

Stich, Cordonnier and Jaggi, Sparsified SGD with Memory (2018).
"""

import torch

from ..ranks import flatten, spread
from .base import Compressor, Named


class TopK(Compressor):
    """Every rank sends a share of each bucket's values, with their positions.

    The number of received bytes grows with the number of ranks.
    """

    def compress(self, gradients: Named) -> None:
        flat = flatten(self.with_error(gradients))
        count = max(1, round(self.options.compress_share * len(flat)))
        places = flat.abs().topk(count, sorted=False).indices
        values = flat[places]
        # values and positions in one collective, as bytes, since their types differ
        row = torch.cat([values.view(torch.uint8), places.int().view(torch.uint8)])
        mean = torch.zeros_like(flat)
        for received in self.lane.ranks.all_gather(row):  # every rank adds in the order of ranks
            own, at = received.split([values.nbytes, count * torch.int32.itemsize])
            mean.index_add_(0, at.clone().view(torch.int32), own.clone().view(flat.dtype))
        flat[places] = 0
        self.keep_error(gradients, flat)
        spread(mean / self.ranks.world_size, list(gradients.values()))


build = TopK
