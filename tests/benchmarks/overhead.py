"""What synchronising costs the host in a step of many small parameters: in turns with torch's DDP.

    python -m tests.benchmarks.overhead [--ranks 2] [--steps 200] [--sync all_reduce]

Each rank holds one copy of the model for each way, and takes a step of each in turn: forward,
backward and sync, all ranks at once, over this machine's loopback. What a way has over the
plain pass, which sends nothing, is its overhead. Seconds are medians of rank 0.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn

from tests.train.workers import results_of
from train.report.pages.page import markdown_table
from train.sync import plugins
from train.sync.base import SyncOptions
from train.sync.ranks import Ranks

PLAIN, BASE = "plain", "ddp"
LAYERS, WIDTH, SAMPLES = 100, 32, 8
WARM_UP = 10
Seconds = dict[str, list[float]]  # of each step, by the way


def many_small() -> nn.Module:
    """A model of 201 parameters, as many as BERT-base has."""
    layers = (layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))
    return nn.Sequential(*layers, nn.RMSNorm(WIDTH))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200, help="of each way")
    parser.add_argument("--sync", default="all_reduce", help="modes beside DDP, commas between")
    args = parser.parse_args()
    print(markdown_table(table(measured(args.ranks, args.steps, args.sync))))


def measured(ranks: int = 2, steps: int = 200, modes: str = "all_reduce") -> Seconds:
    """One run of all ways in turns, as rank 0 has measured it."""
    with tempfile.TemporaryDirectory() as folder:
        found: Seconds = results_of(work, ranks, Path(folder), str(steps), f"{BASE},{modes}")[0]
    return found


def table(found: Seconds) -> list[dict[str, str]]:
    """A row for each way: milliseconds of a step, what of it is overhead, and of DDP's."""
    ms = {way: 1e3 * median(seconds) for way, seconds in found.items()}
    of_ddp = ms[BASE] - ms[PLAIN]
    return [
        {
            "way": way,
            "ms of a step": f"{one:.2f}",
            "over the plain pass": f"{one - ms[PLAIN]:.2f}",
            "of DDP's": f"{(one - ms[PLAIN]) / of_ddp:.2f}",
        }
        for way, one in ms.items()
    ]


def work(ranks: Ranks, steps: str, modes: str) -> Seconds:
    """As one rank: the seconds of the steps."""
    torch.manual_seed(0)
    syncs = {PLAIN: plugins.build("single", ranks, SyncOptions())}
    syncs |= {mode: plugins.build(mode, ranks, SyncOptions()) for mode in modes.split(",")}
    models = {way: sync.wrap(many_small()) for way, sync in syncs.items()}
    values = torch.randn(SAMPLES, WIDTH)
    found: Seconds = {way: [] for way in syncs}
    for _ in range(WARM_UP + int(steps)):
        for way, sync in syncs.items():
            ranks.all_gather(torch.zeros(1))
            started = time.perf_counter()
            sync.backward(models[way](values).square().sum())
            sync.sync(models[way])
            found[way].append(time.perf_counter() - started)
            models[way].zero_grad(set_to_none=True)
    return {way: seconds[WARM_UP:] for way, seconds in found.items()}


if __name__ == "__main__":
    main()
