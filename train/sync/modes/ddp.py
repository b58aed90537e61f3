"""torch's DistributedDataParallel unchanged: buckets are all-reduced in the backward pass."""

from ..ddp.torch_ddp import DdpSync

build = DdpSync
