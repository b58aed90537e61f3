"""torch's DistributedDataParallel: buckets are all-reduced while the backward pass goes on."""

from contextlib import AbstractContextManager

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from train.grad_sync import DdpAccount, GradSync, ddp_options


class Ddp(GradSync):
    """Communication overlaps the backward pass, so its time is part of `backward_s`."""

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.world.world_size == 1:
            return model
        device = next(model.parameters()).device
        wrapped = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            forward_sync_buffers=False,
            **ddp_options(self.config),
        )
        self._account = DdpAccount(self)
        self._account.wrapped(wrapped)
        return wrapped

    def sync(self, model: nn.Module) -> None:
        if isinstance(model, DistributedDataParallel):
            self._account.stepped(model)  # the backward pass has sent them

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        if isinstance(model, DistributedDataParallel):
            return model.no_sync()
        return super().no_sync(model)


build = Ddp
