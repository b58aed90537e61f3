"""The arithmetic of a step: weights stay in full precision, the forward pass may use less."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from muster.errors import refuse

CODES = (  # types of quantised weights, whose scales are stored elsewhere
    torch.int8, torch.uint8,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
)  # fmt: skip
REDUCED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def move_model(model: nn.Module, precision: str, device: torch.device) -> nn.Module:
    """Return `model` on `device` in float32, or in float64 with --precision fp64.

    bfloat16 parameters stay bfloat16, except with fp64. Complex buffers stay complex.

    Raises:
        UsageError: a parameter is complex or quantised; the message names it.
    """
    refuse([*_complex(model), *_quantised(model)])
    model = model.to(device)
    if precision == "fp64":
        return model.double()
    model._apply(_to_float32)
    return model


def _to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.float64) else tensor


def _complex(model: nn.Module) -> Iterator[str]:
    for name, param in model.named_parameters():
        if param.is_complex():
            yield (
                f"the model's parameter {name} is complex ({_type_name(param)}), which not all "
                "optimizers and collectives support"
                "\ntip: make it a real parameter with a last dimension of 2, and use "
                "torch.view_as_complex in the forward pass"
            )
            return


def _quantised(model: nn.Module) -> Iterator[str]:
    """Yield a line for a model that contains codes, which a cast would treat as numbers."""
    remedy = "pass the model without quantisation"
    for name, param in model.named_parameters():
        if param.is_quantized or param.dtype in CODES or type(param.data) is not Tensor:
            yield f"the model's parameter {name} is quantised ({_type_name(param)})\ntip: {remedy}"
            return
    for name, module in model.named_modules():
        kind = type(module)
        by_transformers = getattr(module, "hf_quantizer", None) is not None
        if by_transformers or ".quantized" in kind.__module__:
            yield (
                f"the model's part {name or 'itself'} is quantised ({kind.__name__})\ntip: {remedy}"
            )
            return


def _type_name(param: nn.Parameter) -> str:
    kind = type(param.data)
    dtype = str(param.dtype).removeprefix("torch.")
    return dtype if kind is Tensor else f"{kind.__name__} of {dtype}"


class Precision(torch.amp.GradScaler):
    """fp32 and fp64 compute plainly; bf16 and fp16 run the forward pass under autocast.

    fp16 also scales the loss, so that small gradients do not become zero, and skips a step whose
    scaled gradients overflowed. That is decided after the sync, so it is the same on every rank.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.can_overflow = name == "fp16"
        super().__init__(device.type, enabled=self.can_overflow)
        self._kind, self._reduced = device.type, REDUCED.get(name)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which is empty for a precision without a scale."""
        if state:
            super().load_state_dict(state)

    def autocast(self) -> AbstractContextManager[None]:
        if self._reduced is None:
            return nullcontext()
        return torch.autocast(self._kind, dtype=self._reduced)


def set_float32_matmul(precision: str) -> None:
    """Set torch's precision for float32 matrix products, unless it is the default, "highest".

    With the default, a task's own setting is kept.
    """
    if precision != "highest":
        torch.set_float32_matmul_precision(precision)


def advice(precision: str, device: torch.device) -> str:
    """Return advice about this precision on this machine; empty if there is none."""
    if device.type == "cuda" and precision == "fp32":
        chosen = torch.get_float32_matmul_precision()
        line = f"float32 matrix products on the GPU use precision {chosen}"
        if chosen != "highest":
            return line
        return (
            f"{line}, torch's default; --float32-matmul high (TF32) or --precision bf16 is faster"
        )
    if device.type != "cpu" or precision not in REDUCED:
        return ""
    if precision == "fp16":
        return (
            "--precision fp16 is for GPUs: on a CPU, a step takes many times as long as with fp32"
        )
    capabilities = getattr(torch.cpu, "get_capabilities", None)  # from torch 2.12 on
    if capabilities is None:
        return ""
    features = [name for name, is_present in capabilities().items() if is_present]
    if any(name.endswith("bf16") for name in features):  # amx_bf16, avx512_bf16, Arm's bf16
        return ""
    return "--precision bf16: this CPU has no bf16 instructions, so fp32 is likely to be faster"
