"""torch's DistributedDataParallel: buckets are all-reduced while the backward pass goes on."""

from contextlib import AbstractContextManager

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..torch_ddp import DdpSync, ddp_options


class Ddp(DdpSync):
    """Communication overlaps the backward pass, so its time is part of `backward_s`."""

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.ranks.world_size == 1:
            return model
        device = next(model.parameters()).device
        wrapped = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            forward_sync_buffers=False,
            **ddp_options(self.options),
        )
        self.wrapped(wrapped)
        return wrapped

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        if isinstance(model, DistributedDataParallel):
            return model.no_sync()
        return super().no_sync(model)


build = Ddp
