"""What compressors share: each is a hook that makes gradients approximately their mean over ranks.

One that keeps tensors between steps returns them from `state`, as powersgd.py does.
"""

import torch
from torch import Tensor
from torch.futures import Future

from ..ddp.hooks import BucketHook, summed


class Cast(BucketHook):
    """Send gradients as numbers of fewer bits; there is nothing to remember.

    One all_reduce of a bucket (n,), in `dtype`.
    """

    dtype: torch.dtype

    def start(self, flat: Tensor) -> Future[Tensor]:
        # divided first, so that the sum stays in the range of the small type
        small = (flat / self.ranks.world_size).to(self.dtype)
        return summed(small, self.ranks).then(lambda done: flat.copy_(done.value()))
