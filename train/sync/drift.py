"""Layers that change their own weights in the forward pass, so that the ranks' weights differ."""

from torch import nn


def note(model: nn.Module) -> str:
    """Name the embeddings of `model` that have a `max_norm`, in a message; empty without any."""
    names = [
        name or "the model"
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None
    ]
    if not names:
        return ""
    return (
        f"max_norm of {', '.join(names)}: in a forward pass, each rank rescales only the rows "
        "that it uses, so the ranks' weights drift apart (as with DDP)"
        "\ntip: leave max_norm out"
    )
