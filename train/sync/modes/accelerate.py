"""Hugging Face Accelerate prepares model, optimizer and precision; the samples stay the plan's.

Its prepared data loader would reshard the batches that the plan has cut already, and its prepared
scheduler would step once per process: so neither is given to it.
"""

import os
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from configs.settings.train import TrainConfig
from train.distributed.world import World
from train.model.precision import Precision
from train.sync.base import GradSync, ddp_options
from train.sync.comm_hooks import HookAccount


class Accelerate(GradSync):
    """Works under torchrun, under `accelerate launch`, and by hand: the process group is ours."""

    def __init__(self, world: World, config: TrainConfig) -> None:
        super().__init__(world, config)
        self._account = HookAccount(self, config)
        on_gpu = config.device == "cuda"
        if on_gpu:  # the one this worker was given; by itself it takes that of its local rank
            os.environ["ACCELERATE_TORCH_DEVICE"] = f"cuda:{torch.cuda.current_device()}"
            # Else it gives DDP device_ids=[LOCAL_RANK], which there is not where a worker sees
            # one GPU only.
            os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"
        if world.world_size > 1:
            # Accelerate reads the world from torchrun's variables, which nobody set by hand; and
            # it would choose its own number of threads where OMP_NUM_THREADS is not set.
            os.environ["RANK"] = str(world.rank)
            os.environ["WORLD_SIZE"] = str(world.world_size)
            os.environ["LOCAL_RANK"] = str(world.local_rank)
            os.environ["LOCAL_WORLD_SIZE"] = str(world.local_world_size)
            os.environ.setdefault("MASTER_ADDR", world.master_addr)
            os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())
        ddp = {**ddp_options(config), "broadcast_buffers": False}
        self._accelerator = Accelerator(
            cpu=not on_gpu,
            mixed_precision=config.precision if config.precision in ("bf16", "fp16") else "no",
            kwargs_handlers=[DistributedDataParallelKwargs(**ddp)],
        )

    def wrap(self, model: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            # Accelerate has only DDP's former name for leaving buffers alone.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            prepared: nn.Module = self._accelerator.prepare_model(model)
        if isinstance(prepared, DistributedDataParallel):
            self._account.wrapped(prepared)
        return prepared

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        prepared: Optimizer = self._accelerator.prepare_optimizer(optimizer)
        return prepared

    def precision(self, config: TrainConfig, device: torch.device) -> Precision:
        return _AcceleratePrecision(self._accelerator)

    def backward(self, loss: Tensor) -> None:
        self._accelerator.backward(loss)

    def sync(self, model: nn.Module) -> None:
        if isinstance(model, DistributedDataParallel):
            self._account.stepped(model)  # the backward pass has sent them

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self._accelerator.no_sync(model)
        return context

    def state(self) -> dict[str, Tensor]:
        return self._account.state()

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        self._account.restore(state, next(model.parameters()).device)


class _AcceleratePrecision(Precision):
    """Accelerate's own autocast (inside the prepared model) and loss scaling."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__("fp32", accelerator.device)
        self._accelerator = accelerator
        self.can_overflow = accelerator.mixed_precision == "fp16"

    def state(self) -> dict[str, Any]:
        scaler = self._accelerator.scaler
        return {} if scaler is None else dict(scaler.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        if self._accelerator.scaler is not None:
            self._accelerator.scaler.load_state_dict(state)

    def unscale(self, optimizer: Optimizer) -> None:
        self._accelerator.unscale_gradients(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        optimizer.step()


build = Accelerate
