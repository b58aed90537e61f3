"""The base of compressors: hooks that average gradients over ranks approximately.

A compressor that keeps tensors between steps returns them from `state`, as powersgd.py does.
"""

import torch
from torch import Tensor
from torch.futures import Future

from ..ddp.hooks import BucketHook, summed


class Cast(BucketHook):
    """Send gradients as numbers with fewer bits; nothing is kept between steps.

    Each bucket (n,) takes one all_reduce, in `dtype`.
    """

    dtype: torch.dtype

    def start(self, flat: Tensor) -> Future[Tensor]:
        # divided first, so that the sum stays in the range of the small type
        small = (flat / self.ranks.world_size).to(self.dtype)
        return summed(small, self.ranks).then(lambda done: flat.copy_(done.value()))
