"""One of N workers that train, stop half-way and go on, in every mode: `resume_worker.py FOLDER`.

Each rank has a disk of its own, of which only rank 0's holds checkpoints. With losses of another
number of ranks in FOLDER, it goes on from their checkpoints, too.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from configs import plugins
from configs.settings.train import TrainConfig
from tests.train.retained import bits, train
from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.loop.build import ranks_of
from train.loop.trainer import Trainer
from train.worker import end_process

CUT = 11
NAMES = [mode for mode in plugins.names("train.sync.modes") if mode != "single"]
# The others are changed by making a checkpoint; their own tests make the same ones twice.
MODES = [mode for mode in NAMES if plugins.load("train.sync.modes", mode).is_exact]
CYCLE = [*MODES, MODES[0]]  # of each mode's checkpoints, the one before it goes on, too
# Dropout is on, but for what is compared over numbers of ranks, whose dropout differs.
BASE = TrainConfig(
    task="synthetic", lr=0.01, epochs=2, batch_size=256, accumulation=2, device="cpu"
)
SPLITS = {2: "3,1", 3: "3,0,2"}


def losses(trainer: Trainer) -> torch.Tensor:
    return torch.tensor([one.loss for one in trainer.history.steps], dtype=torch.float64)


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    with rendezvous.meet(World.find(os.environ), Meeting("cpu", "gloo")) as peers:
        ranks = ranks_of(peers.world)
        for mode in MODES:
            config = replace(BASE, sync=mode, split=SPLITS[ranks.world_size])
            disk = folder / f"{mode}-{ranks.world_size}" / f"disk{ranks.rank}"
            whole = train(ranks, config, disk / "whole")
            cut = replace(config, max_steps=CUT, checkpoint_every=str(CUT))
            train(ranks, cut, disk / "cut")
            again = replace(config, resume="auto")
            found = train(ranks, again, disk / "again", disk / "cut" / "checkpoints")
            assert bits(found) == bits(whole), f"{mode}: not the same bits"
            assert torch.equal(losses(found), losses(whole)[CUT:]), f"{mode}: not the same losses"

            plain = replace(config, dropout=0.0)
            reference = folder / f"{mode}.pt"
            if not reference.exists():
                whole = train(ranks, plain, disk / "plain")
                train(ranks, replace(cut, dropout=0.0), disk / "plain-cut")
                if ranks.rank == 0:
                    torch.save(losses(whole), reference)
                continue
            for made_by in (mode, CYCLE[CYCLE.index(mode) + 1]):
                (other,) = folder.glob(
                    f"{made_by}-[!{ranks.world_size}]/disk0/plain-cut/checkpoints"
                )
                found = train(ranks, replace(plain, resume="auto"), disk / made_by, other)
                want = torch.load(reference, weights_only=True)[CUT:]
                gap = (losses(found) - want).abs().max().item()
                what = f"{mode}, from {made_by}'s checkpoint of other ranks"
                assert gap < 1e-6, f"{what}: losses differ by {gap}"


if __name__ == "__main__":
    main()
    end_process(0)
