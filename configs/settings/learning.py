"""How a model learns: optimizer, learning rate, precision."""

from dataclasses import dataclass
from typing import Literal

from configs.settings.fields import computing, setting


@dataclass(frozen=True, kw_only=True)
class LearningConfig:
    """How a step follows from gradients."""

    optimizer: Literal["adamw", "adam", "adadelta", "sgd"] = setting("adamw", "the optimizer")
    lr: float = setting(5e-5, "peak learning rate", positive=True)
    schedule: Literal["linear", "polynomial", "constant"] = setting("linear", "after the warm-up")
    warmup_steps: int = setting(0, "steps of linear warm-up", least=0)
    power: float = setting(1.0, "power of the polynomial schedule; 1 is linear", positive=True)
    end_lr: float = setting(0.0, "learning rate at the end of the polynomial schedule", least=0)
    weight_decay: float = setting(0.0, "weight decay of the parameters that --decay names", least=0)
    decay: Literal["matrices", "all"] = setting(
        "matrices", "all: biases and norms, too, unlike BERT"
    )
    adam_beta1: float = setting(0.9, "Adam's and AdamW's decay of the mean", share=True)
    adam_beta2: float = setting(0.999, "Adam's and AdamW's decay of the mean square", share=True)
    adam_eps: float = setting(1e-8, "Adam's and AdamW's epsilon", positive=True)
    adadelta_rho: float = setting(0.9, "Adadelta's decay of the mean squares", share=True)
    adadelta_eps: float = setting(1e-6, "Adadelta's epsilon", positive=True)
    momentum: float = setting(0.9, "SGD's momentum", least=0)
    max_grad_norm: float = setting(1.0, "clip the gradient to this norm; 0: never", least=0)
    precision: Literal["fp32", "bf16", "fp16", "fp64"] = setting("fp32", "arithmetic of the model")
    compile: bool = computing(False, "compile the model's layers in the first steps, by torch")
