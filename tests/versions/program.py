"""A user's program, which trains a model in several ways and writes the losses of each.

    program.py FILE [NAME ...]        these names of torch are taken away first

It runs on the Python and the torch of any user, and needs numpy and psutil no more than they do.
"""

import json
import platform
import sys
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
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
COMPRESSED = ("bf16", "fp16", "int8", "powersgd", "topk")
# An embedding of which only the rows in use travel: it has more than 1 MiB.
WORDS, WIDTH, SAMPLES, BATCH = 20_000, 8, 48, 12
HALF = 40_000.0  # two of them are more than a number of 16 bits can be


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.rest = nn.Sequential(
            nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 1)
        )

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.rest(self.words(words).mean(1)).squeeze(1)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(1)
    words = torch.randint(WORDS, (SAMPLES, 6), generator=chance)
    return words, torch.randn(SAMPLES, generator=chance, dtype=torch.float64)


def losses(wrap: Any, *, record: bool = False) -> tuple[list[float], list[list[int]]]:
    """Of each step the mean over ranks, and this rank's samples."""
    torch.manual_seed(0)
    model = wrap(Net().double())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    words, wanted = data()
    found, samples = [], []
    for step in muster.steps(SAMPLES, batch_size=BATCH, epochs=2, accumulation=2):
        total, own = torch.zeros((), dtype=torch.float64), []
        for micro in step.micro_batches:
            chosen = list(micro.indices)
            error = (model(words[chosen]) - wanted[chosen]).square().mean() * micro.weight
            error.backward()
            total += error.detach()
            own += chosen
        optimizer.step()
        optimizer.zero_grad()
        if record:
            muster.record(step, loss=total, model=model)
        dist.all_reduce(total)
        found.append(total.item() / dist.get_world_size())
        samples.append(own)
    return found, samples


def by_one_process(steps: list[list[int]]) -> list[float]:
    """The same samples in one batch, without a group's help."""
    torch.manual_seed(0)
    model = Net().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    words, wanted = data()
    found = []
    for chosen in steps:
        error = (model(words[chosen]) - wanted[chosen]).square().mean()
        error.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(error.item())
    return found


def half() -> float:
    """The mean of equal gradients, sent as numbers of 16 bits."""
    model = muster.sync(nn.Linear(1, 1, bias=False), compress="fp16")
    model(torch.full((1, 1), HALF)).sum().backward()
    return float(model.module.weight.grad)


def main() -> None:
    with muster.init(device="cpu") as run:
        exact, compressed, own = {}, {}, list[list[int]]()
        for name, wrap in EXACT.items():
            exact[name], own = losses(wrap, record=name == "all_reduce")
        for way in COMPRESSED:
            compressed[way], _ = losses(lambda model, way=way: muster.sync(model, compress=way))
        every: list[Any] = [None] * run.world_size
        dist.all_gather_object(every, own)
        steps = [[*chain(*parts)] for parts in zip(*every, strict=True)]
        found = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "ranks": run.world_size,
            "half": [half(), HALF],
            "one process": by_one_process(steps),
            "exact": exact,
            "compressed": compressed,
        }
        if run.is_main:
            Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
