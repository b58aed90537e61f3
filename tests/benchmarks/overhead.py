"""What synchronising costs the host in a step of many small parameters: in turns with torch's DDP.

    python -m tests.benchmarks.overhead [--ranks 2] [--steps 200] [--sync all_reduce]

Each rank holds one copy of the model for each way, and takes a step of each in turn: forward,
backward and sync, all ranks at once, over this machine's loopback. What a way has over the
plain pass, which sends nothing, is its overhead. Seconds are medians of rank 0.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from torch import nn

from tests.benchmarks import places
from tests.benchmarks.results import aligned
from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.sync import base
from train.sync.base import SyncOptions
from train.sync.ranks import current_ranks

PLAIN, BASE = "plain", "ddp"
LAYERS, WIDTH, SAMPLES = 100, 32, 8
RANKS, STEPS, WARM_UP = 2, 200, 10
MOST_OF_DDP = 1.1
CPU = torch.device("cpu")
Seconds = dict[str, list[float]]  # of each step, by the way


class ManySmall(nn.Module):
    """201 parameters, as many as BERT-base has."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            values = torch.tanh(layer(values))
        return values * self.scale


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each way")
    parser.add_argument("--sync", default="all_reduce", help="modes beside DDP, commas between")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    modes = [BASE, *args.sync.split(",")]
    if args.worker:
        work(modes, args.steps, args.worker)
    else:
        print(aligned(table(measured(args.ranks, args.steps, modes))))
    return 0


def measured(
    ranks: int = RANKS, steps: int = STEPS, modes: Sequence[str] = (BASE, "all_reduce")
) -> Seconds:
    """One run of all ways in turns; a run that fails ends the benchmark."""
    flags = (f"--steps={steps}", f"--sync={','.join(modes[1:])}")
    found: Seconds = places.on_ranks("tests.benchmarks.overhead", ranks, *flags)
    return found


def table(found: Seconds) -> list[list[str]]:
    """A row for each way: milliseconds of a step, what of it is overhead, and of DDP's."""
    plain = median(found[PLAIN])
    over = {way: median(seconds) - plain for way, seconds in found.items()}
    rows = [["way", "ms of a step", "over the plain pass", "of DDP's", ""]]
    rows.append([PLAIN, f"{1e3 * plain:.2f}", "", "", ""])
    for way in list(found)[1:]:
        ratio = over[way] / over[BASE]
        figures = (1e3 * median(found[way]), 1e3 * over[way], ratio)
        rows.append([way, *(f"{figure:.2f}" for figure in figures), verdict(way, ratio)])
    return rows


def verdict(way: str, ratio: float) -> str:
    if way != "all_reduce":
        return ""
    return f"wanted <= {MOST_OF_DDP:.2f}: {'met' if ratio <= MOST_OF_DDP else 'missed'}"


def work(modes: Sequence[str], steps: int, output: Path) -> None:
    """As one rank: take the steps; rank 0 writes its seconds down."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with rendezvous.meet(World.find(os.environ), Meeting("cpu", "gloo")) as peers:
        ways, ranks = {}, current_ranks()
        for mode in (PLAIN, *modes):
            name = "single" if mode == PLAIN else mode
            sync = base.build(name, ranks, SyncOptions())
            ways[mode] = (sync, sync.wrap(ManySmall()))
        values = torch.randn(SAMPLES, WIDTH)
        found: Seconds = {way: [] for way in ways}
        for step in range(WARM_UP + steps):
            for way, (sync, model) in ways.items():
                ranks.all_gather(torch.zeros(1))
                started = time.perf_counter()
                sync.backward(model(values).square().sum())
                sync.sync(model)
                ended = time.perf_counter()
                model.zero_grad(set_to_none=True)
                if step >= WARM_UP:
                    found[way].append(ended - started)
        if peers.world.is_main:
            output.write_text(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
