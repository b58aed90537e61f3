"""Layers that a model repeats; each can be compiled, or gathered, on its own."""

from collections import Counter

from torch import nn


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """Return the repeated layers of `model` that can be gathered one at a time.

    Layers that share a parameter with a module outside of them are left out: only one unit may own
    a parameter.
    """
    holders = _holders(model)
    return [
        layer
        for layer in repeated(model)
        if (inside := _holders(layer)) and all(holders[param] == inside[param] for param in inside)
    ]


def repeated(module: nn.Module) -> list[nn.Module]:
    """Return the members of every outermost `ModuleList` of several modules of one class."""
    if isinstance(module, nn.ModuleList) and len(module) > 1 and len(set(map(type, module))) == 1:
        return list(module)
    return [layer for child in module.children() for layer in repeated(child)]


def _holders(module: nn.Module) -> Counter[nn.Parameter]:
    """Count the names of each parameter."""
    return Counter(param for _, param in module.named_parameters(remove_duplicate=False))
