"""The arithmetic of a step: weights stay full precision, the forward pass may use less."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

REDUCED = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """fp32 and fp64 compute plainly; bf16 and fp16 run the forward pass under autocast.

    fp16 also scales the loss, so that small gradients do not vanish, and skips a step whose
    scaled gradients overflowed; that is decided after the sync, hence alike on every rank.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._dtype = REDUCED.get(name)
        self._device = device
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")
        self.can_overflow = name == "fp16"

    def autocast(self) -> AbstractContextManager[None]:
        if self._dtype is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)

    def scale(self, loss: Tensor) -> Tensor:
        return self._scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Undo the scaling of the gradients, so that clipping sees the true ones."""
        self._scaler.unscale_(optimizer)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the loss scaling."""
        return dict(self._scaler.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._scaler.load_state_dict(state)

    def step(self, optimizer: Optimizer) -> None:
        self._scaler.step(optimizer)
        self._scaler.update()


def advice(precision: str, device: torch.device) -> str:
    """What stands against this precision here, in words; empty: nothing."""
    if precision != "bf16" or device.type != "cpu":
        return ""
    able = [name for name, is_there in torch.cpu.get_capabilities().items() if is_there]
    if any(name.endswith("bf16") for name in able):  # amx_bf16, avx512_bf16, Arm's bf16
        return ""
    return "--precision bf16: this CPU has no instructions for it, so fp32 is likely faster"


def set_dropout(model: nn.Module, probability: float) -> None:
    """Give every dropout of `model` this probability, those inside attention kernels too."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = probability
        for name, value in vars(module).items():
            # Attention that calls a fused kernel keeps its probability as a plain number.
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, probability)
        config = getattr(module, "config", None)
        for name in vars(config) if config is not None else ():
            if "dropout" in name and isinstance(getattr(config, name), float):
                setattr(config, name, probability)
