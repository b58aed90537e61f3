"""Hugging Face Accelerate prepares model and optimizer; samples and arithmetic stay the trainer's.

Its prepared data loader would reshard the batches that the plan has cut already, and its prepared
scheduler would step once per process: so neither is given to it. What it does for --precision is
torch's autocast and GradScaler, as the trainer has them for every mode.
"""

import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim import Optimizer

from ..ddp.data_parallel import hand_over
from ..ddp.torch_ddp import DDP_OPTIONS, DdpSync
from ..ranks import Ranks


class Accelerate(DdpSync):
    """Works under torchrun, under `accelerate launch`, and by hand: the process group is ours."""

    def wrap(self, model: nn.Module) -> nn.Module:
        _set_environment(self.ranks, on_gpu := next(model.parameters()).is_cuda)
        self._accelerator = Accelerator(cpu=not on_gpu, mixed_precision="no")
        hand_over(self._accelerator, lambda: {**self.way.buckets(), **DDP_OPTIONS}, self.wrapped)
        prepared: nn.Module = self._accelerator.prepare_model(model)
        return prepared

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        prepared: Optimizer = self._accelerator.prepare_optimizer(optimizer)
        return prepared


def _set_environment(ranks: Ranks, on_gpu: bool) -> None:
    """What Accelerate reads from variables: nobody set them where workers start by hand."""
    if on_gpu:  # the one this worker was given; by itself it takes that of its local rank
        os.environ["ACCELERATE_TORCH_DEVICE"] = f"cuda:{torch.cuda.current_device()}"
        # Else it gives DDP device_ids=[LOCAL_RANK], which there is not where a worker sees one
        # GPU only.
        os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"
    os.environ |= {
        "RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.world_size),
        # It would choose its own number of threads where this is not set.
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    # It wants to see these, and does not use them: the group is there.
    os.environ.setdefault("LOCAL_RANK", "0")
    os.environ.setdefault("MASTER_ADDR", "localhost")


build = Accelerate
