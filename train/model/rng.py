"""Random numbers of a training: seeds and states of a process's generators, and dropout.

numpy is imported only if its generator is used, so that `muster.steps` needs only torch.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def hash_seed(*parts: int) -> int:
    """Derive one 63-bit seed from several numbers: similar numbers give unrelated seeds."""
    mixed = 0x9E3779B97F4A7C15
    for part in parts:  # splitmix64's finaliser (Steele, Lea and Flood, 2014)
        mixed = (mixed + part) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    return mixed >> 1


def seed(number: int) -> None:
    """Seed the generators of Python, numpy and torch, on all devices."""
    import numpy

    random.seed(number)
    numpy.random.seed(number % 2**32)
    torch.manual_seed(number)


def capture() -> dict[str, Any]:
    """Return the states of the generators of Python, numpy and torch."""
    import numpy

    name, keys, *rest = numpy.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (str(name), numpy.asarray(keys).tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    }


def restore(state: dict[str, Any]) -> None:
    """Set all generators to the states that `capture` returned."""
    import numpy

    random.setstate(state["python"])
    numpy.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def preserved() -> Iterator[None]:
    """A context in which random draws do not affect the draws after it."""
    state = capture()
    try:
        yield
    finally:
        restore(state)


def set_dropout(model: nn.Module, probability: float) -> None:
    """Set the probability of every dropout of `model`, including those in attention kernels."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = probability
        for name, value in vars(module).items():
            # Attention that calls a fused kernel stores its probability as a plain number.
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, probability)
        config = getattr(module, "config", None)
        for name in vars(config) if config is not None else ():
            if "dropout" in name and isinstance(getattr(config, name), float):
                setattr(config, name, probability)
