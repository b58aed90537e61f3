"""Hugging Face Accelerate prepares model and optimizer; samples and arithmetic stay the trainer's.

The data loader and the scheduler are not passed to Accelerate. It would divide batches among ranks
that the plan has already divided, and step the scheduler once per process. Nor is --precision
passed to Accelerate: the trainer itself uses torch's autocast and GradScaler, in every mode.
"""

import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim import Optimizer

from ..ddp.frameworks import hand_over
from ..ddp.torch_ddp import DdpSync
from ..ranks import Ranks


class Accelerate(DdpSync):
    """Works under torchrun, under `accelerate launch` and by hand: it uses our process group."""

    def wrap(self, model: nn.Module) -> nn.Module:
        device = next(model.parameters()).device
        _set_environment(self.ranks, device.type == "cuda")
        self._accelerator = Accelerator(cpu=device.type != "cuda", mixed_precision="no")
        options = self.options_for(device)
        hand_over(self._accelerator, lambda: options, self.wrapped)
        prepared: nn.Module = self._accelerator.prepare_model(model)
        return prepared

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        prepared: Optimizer = self._accelerator.prepare_optimizer(optimizer)
        return prepared


def _set_environment(ranks: Ranks, on_gpu: bool) -> None:
    """Set the variables that Accelerate reads; they are missing if workers are started by hand."""
    if on_gpu:  # this worker's GPU; Accelerate would choose one by the local rank
        os.environ["ACCELERATE_TORCH_DEVICE"] = f"cuda:{torch.cuda.current_device()}"
        # Otherwise it passes device_ids=[LOCAL_RANK] to DDP. That device does not exist if a worker
        # sees only one GPU.
        os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"
    os.environ |= {
        "RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.world_size),
        # Otherwise Accelerate would set its own number of threads.
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    # Accelerate requires these but does not use them, since the group exists.
    os.environ.setdefault("LOCAL_RANK", "0")
    os.environ.setdefault("MASTER_ADDR", "localhost")


build = Accelerate
