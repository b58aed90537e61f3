"""torch's DistributedDataParallel unchanged: buckets are all-reduced in the backward pass.

Communication overlaps the backward pass, so its time is part of `backward_s`.
"""

from ..ddp.torch_ddp import DdpSync

build = DdpSync
