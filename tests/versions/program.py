"""A user's program, which trains a model in several ways and writes the losses of each.

    program.py FILE [NAME ...]        these names of torch are removed first

It runs on any user's Python and torch, and needs neither numpy nor psutil.
"""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

for name in sys.argv[2:]:
    module, _, last = name.rpartition(".")
    delattr(import_module(module), last)

import muster  # noqa: E402 (what it finds of torch is what is left)

EXACT = {
    "DDP": DistributedDataParallel,
    "ddp": lambda model: muster.sync(model, "ddp"),
    "all_reduce": muster.sync,
    "gather_scatter": lambda model: muster.sync(model, "gather_scatter"),
}
# The step to be recorded, and the samples and weight of each micro-batch.
Step = tuple[Any, list[tuple[list[int], float]]]
COMPRESSED = ("bf16", "fp16", "powersgd")
# An embedding of more than 1 MiB, of which only the rows in use are sent.
WORDS, WIDTH, SAMPLES, BATCH = 20_000, 8, 48, 12
HALF = 40_000.0  # the sum of two exceeds the range of 16-bit numbers


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.rest = nn.Sequential(
            nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 1)
        )

    def forward(self, words: Tensor) -> Tensor:
        return self.rest(self.words(words).mean(1)).squeeze(1)


def data() -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(1)
    words = torch.randint(WORDS, (SAMPLES, 6), generator=chance)
    return words, torch.randn(SAMPLES, generator=chance, dtype=torch.float64)


def losses(wrap: Any, steps: Sequence[Step], record: Callable[..., Any] | None = None) -> Tensor:
    """Return this rank's loss of each step; a micro-batch has samples and a weight."""
    torch.manual_seed(0)
    model = wrap(Net().double())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    words, wanted = data()
    found = torch.zeros(len(steps), dtype=torch.float64)
    for number, (step, micro_batches) in enumerate(steps):
        for chosen, weight in micro_batches:
            error = (model(words[chosen]) - wanted[chosen]).square().mean() * weight
            error.backward()
            found[number] += error.detach()
        optimizer.step()
        optimizer.zero_grad()
        if record is not None:
            record(step, loss=found[number], model=model)
    return found


def over_ranks(found: Tensor) -> list[float]:
    """Return the means over ranks."""
    dist.all_reduce(found)
    return (found / dist.get_world_size()).tolist()


def half() -> float:
    """Return the mean of equal gradients that are sent as 16-bit numbers."""
    model = muster.sync(nn.Linear(1, 1, bias=False), compress="fp16")
    model(torch.full((1, 1), HALF)).sum().backward()
    return float(model.module.weight.grad)


def main() -> None:
    with muster.init(device="cpu") as run:
        plan = muster.steps(SAMPLES, batch_size=BATCH, epochs=2, accumulation=2)
        own = [
            (step, [([*one.indices], one.weight) for one in step.micro_batches]) for step in plan
        ]
        exact, compressed = {}, {}
        for name, wrap in EXACT.items():
            record = muster.record if name == "all_reduce" else None
            exact[name] = over_ranks(losses(wrap, own, record))
        for way in COMPRESSED:
            wrap = partial(muster.sync, compress=way)
            compressed[way] = over_ranks(losses(wrap, own))
        every: list[Any] = [None] * run.world_size
        dist.all_gather_object(every, [[one for one, _ in parts] for _, parts in own])
        whole = [(None, [([*chain(*chain(*parts))], 1.0)]) for parts in zip(*every, strict=True)]
        found = {
            "half": [half(), HALF],
            "one process": losses(nn.Identity(), whole).tolist(),
            "exact": exact,
            "compressed": compressed,
        }
        if run.is_main:
            Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
