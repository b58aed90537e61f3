"""One of two workers that train a task of one's own, in which rank 1 rounds differently.

`drift_worker.py FOLDER`: its records of each run lie below.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from configs.settings.train import TrainConfig
from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.loop.build import Builder, ranks_of
from train.records.sinks import Console, Sinks
from train.tasks.synthetic import Synthetic
from train.worker import end_process

ROUNDING = 2.0**-6  # of rank 1's first value, in each step
CONFIG = TrainConfig(task="synthetic", sync="ddp", batch_size=256, max_steps=6, device="cpu",
                     dropout=0.0, evaluate="never")  # fmt: skip


class Drifting(torch.optim.SGD):
    def __init__(self, params, off):
        super().__init__(params, lr=0.01)
        self.off = off

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.param_groups[0]["params"][0].view(-1)[0] += self.off


class Own(Synthetic):
    off = 0.0

    def build_optimizer(self, model):
        return Drifting(model.parameters(), self.off)

    def schedule(self, steps):
        return lambda step: 0.5**step


def main() -> None:
    folder = Path(sys.argv[1])
    with rendezvous.meet(World.find(os.environ), Meeting("cpu", "gloo")) as peers:
        ranks = ranks_of(peers.world)
        for name, off, every in (("plain", 0, 0), ("alike", 0, 2), ("drifts", ROUNDING, 2)):
            config = replace(CONFIG, equalize_every=every)
            task, sinks = Own(config), Sinks(folder / name, ranks.rank)
            task.off = off * ranks.rank
            console = Console(speaks=False)
            trainer = Builder(config, ranks, torch.device("cpu"), task, console, sinks).trainer()
            trainer.fit()
            sinks.close()
            params = torch.cat([one.detach().flatten() for one in trainer.model.parameters()])
            assert not every or (ranks.all_gather(params) == params).all()


if __name__ == "__main__":
    main()
    end_process(0)
