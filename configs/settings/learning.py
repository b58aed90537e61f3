"""How a model learns: optimizer, learning rate, precision."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from configs.settings.fields import no_share, not_positive, setting, too_low


@dataclass(frozen=True, kw_only=True)
class LearningConfig:
    """How a step follows from gradients."""

    optimizer: Literal["adamw", "adam", "adadelta", "sgd"] = setting("adamw", "the optimizer")
    lr: float = setting(5e-5, "peak learning rate")
    schedule: Literal["linear", "polynomial", "constant"] = setting(
        "linear", "learning rate after the warm-up"
    )
    warmup_steps: int = setting(0, "steps of linear warm-up")
    power: float = setting(1.0, "of the polynomial schedule; 1 is linear")
    end_lr: float = setting(0.0, "learning rate at the end of the polynomial schedule")
    weight_decay: float = setting(0.0, "decay of what --decay names")
    decay: Literal["matrices", "all"] = setting(
        "matrices", "all, or not biases and norms, as BERT has it"
    )
    adam_beta1: float = setting(0.9, "Adam's and AdamW's decay of the mean")
    adam_beta2: float = setting(0.999, "Adam's and AdamW's decay of the mean square")
    adam_eps: float = setting(1e-8, "Adam's and AdamW's epsilon")
    adadelta_rho: float = setting(0.9, "Adadelta's decay of the mean squares")
    adadelta_eps: float = setting(1e-6, "Adadelta's epsilon")
    momentum: float = setting(0.9, "SGD's momentum")
    max_grad_norm: float = setting(1.0, "clip the synchronised gradient to this norm; 0: never")
    precision: Literal["fp32", "bf16", "fp16", "fp64"] = setting("fp32", "arithmetic of the model")
    compile: bool = setting(
        False, "compile the model's layers in the first steps, by torch", affects="computing"
    )

    def learning_problems(self) -> Iterator[str]:
        """A line for every one of these settings that is wrong."""
        for name in ("warmup_steps", "weight_decay", "momentum", "max_grad_norm", "end_lr"):
            yield from too_low(name, getattr(self, name), 0)
        for name in ("lr", "adam_eps", "adadelta_eps", "power"):
            yield from not_positive(name, getattr(self, name))
        for name in ("adam_beta1", "adam_beta2", "adadelta_rho"):
            yield from no_share(name, getattr(self, name))
        if self.end_lr > self.lr > 0:
            yield f"--end-lr {self.end_lr} is above --lr {self.lr}"
