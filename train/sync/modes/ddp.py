"""torch's DistributedDataParallel: buckets are all-reduced while the backward pass goes on."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from configs.settings.train import TrainConfig
from train.distributed.world import World
from train.sync.base import GradSync, ddp_options
from train.sync.comm_hooks import HookAccount


class Ddp(GradSync):
    """Communication overlaps the backward pass, so its time is part of `backward_s`."""

    def __init__(self, world: World, config: TrainConfig) -> None:
        super().__init__(world, config)
        self._account = HookAccount(self, config)

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
        self._account.wrapped(wrapped)
        return wrapped

    def sync(self, model: nn.Module) -> None:
        if isinstance(model, DistributedDataParallel):
            self._account.stepped(model)  # the backward pass has sent them

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        if isinstance(model, DistributedDataParallel):
            return model.no_sync()
        return super().no_sync(model)

    def state(self) -> dict[str, Tensor]:
        return self._account.state()

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        self._account.restore(state, next(model.parameters()).device)


build = Ddp
