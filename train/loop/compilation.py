"""--compile: the model's layers go through torch's compiler."""

import os
import shutil

import torch
from torch import nn

from muster.errors import UsageError
from train.sync.sharding.layers import repeated


def compile_layers(model: nn.Module, device: torch.device) -> None:
    """Compile each layer that `model` repeats, in place; all of it, where it repeats none.

    Layer by layer, gradients become ready one layer after the other, so that they are sent while
    others are computed; of a model compiled as a whole all would come at the end of the backward
    pass. And layers that are alike are compiled once.

    Raises:
        UsageError: there is no compiler for what it writes.
    """
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise UsageError(f"--compile needs a C++ compiler on every node; there is no {compiler}")
    # In this process: its pool of further ones would outlive a worker that is killed.
    torch._inductor.config.compile_threads = 1
    for layer in repeated(model) or [model]:
        layer.compile()
