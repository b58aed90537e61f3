"""What scripts do with DDP: each takes `wrap`, does it, and returns the numbers that came out.

`wrap(model, **options)` is DDP itself, or `muster.sync` in a mode; the numbers have to be the same.
Each of the other files of this folder adds its loops.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parametrizations

Wrap = Callable[..., nn.Module]
LOOPS: dict[str, Callable[[Wrap], Any]] = {}


def loop(function: Callable[[Wrap], Any]) -> Callable[[Wrap], Any]:
    LOOPS[function.__name__] = function
    return function


def inputs(step: int, width: int = 6) -> Tensor:
    """Of this rank."""
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(4, width, generator=generator, dtype=torch.float64)


def net(*extra: nn.Module) -> nn.Sequential:
    """With other weights on each rank."""
    torch.manual_seed(dist.get_rank())
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6), *extra).double()


def gradients(model: nn.Module) -> list[Tensor | None]:
    found = [None if one.grad is None else one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    return found


def trained(
    model: nn.Module, steps: int = 3, scale: Callable[[Tensor], Tensor] = torch.mean
) -> Any:
    """Gradients of some steps, and the parameters after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        scale(model(inputs(step)).square()).backward()
        yield from (None if one.grad is None else one.grad.clone() for one in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    yield from (one.detach().clone() for one in model.parameters())


class Words(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.words, self.last = nn.Embedding(3000, 96, **options), nn.Linear(96, 2)
        self.double()

    def forward(self, values: Tensor) -> Tensor:
        tokens = (values.abs() * 900).long() % 3000
        return self.last(self.words(tokens).mean(1))


class Forms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.scale = nn.Parameter(torch.randn(3, 2).t())
        self.empty = nn.Parameter(torch.zeros(0))
        self.mix = nn.Conv2d(2, 2, 1).to(memory_format=torch.channels_last)
        self.normed = parametrizations.weight_norm(nn.Linear(6, 6))
        self.double()

    def forward(self, values: Tensor) -> Tensor:
        mixed = self.mix(self.normed(values).view(-1, 2, 3, 1))[..., 0]
        return mixed * self.scale + self.empty.sum()
