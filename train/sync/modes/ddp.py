"""torch's DistributedDataParallel as it comes: buckets are all-reduced in the backward pass."""

from ..ddp.torch_ddp import DdpSync


class Ddp(DdpSync):
    """Communication overlaps the backward pass, so its time is part of `backward_s`."""


build = Ddp
