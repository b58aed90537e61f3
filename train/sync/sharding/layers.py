"""The layers that a model repeats: each is gathered by itself when it is its turn."""

from collections import Counter

from torch import nn


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """The members of every outermost list of several modules of one kind.

    Not those that share a module or parameter with what is outside of them: of these no more than
    one may be in charge.
    """
    holders = Counter(id(one) for module in _everywhere(model) for one in _owned(module))
    found = []
    for layer in _members(model):
        inside = Counter(id(one) for module in _everywhere(layer) for one in _owned(module))
        is_alone = all(holders[key] == count for key, count in inside.items())
        if is_alone and any(True for _ in layer.parameters()):
            found.append(layer)
    return found


def _members(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.ModuleList) and len(module) > 1 and len(set(map(type, module))) == 1:
        return list(module)
    return [layer for child in module.children() for layer in _members(child)]


def _everywhere(module: nn.Module) -> list[nn.Module]:
    """`module` and all within it, each as often as it occurs."""
    return [one for _, one in module.named_modules(remove_duplicate=False)]


def _owned(module: nn.Module) -> list[nn.Module | nn.Parameter]:
    params = [param for param in module._parameters.values() if param is not None]
    return [*params, *(one for one in module._modules.values() if one is not None)]
