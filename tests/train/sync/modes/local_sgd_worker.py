"""One of N workers that train with --sync local_sgd in every way: `local_sgd_worker.py FOLDER`.

Each rank has a disk of its own, of which only rank 0's holds checkpoints; rank 0 writes what the
tests compare.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from configs.settings.train import TrainConfig
from tests.train.matrix_tasks import Patchy
from tests.train.matrix_worker import NoSinks
from tests.train.retained import train
from tests.train.sync.compression import training_worker
from tests.train.sync.compression.training_worker import bits, losses
from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.loop.build import Builder, ranks_of
from train.loop.trainer import Trainer
from train.records.console import Console
from train.sync.ranks import Ranks
from train.worker import end_process

CUT = training_worker.CUT
# The third has no samples.
BASE = TrainConfig(
    task="synthetic", sync="local_sgd", lr=0.01, epochs=3, batch_size=64, device="cpu",
    split="3,1,0", sync_every=4,
)  # fmt: skip
DILOCO = {"outer_lr": 0.7, "outer_momentum": 0.9}


def same_everywhere(ranks: Ranks, trainer: Trainer) -> bool:
    return bool((ranks.all_gather(bits(trainer)) == bits(trainer)).all())


def every_step(ranks: Ranks, disk: Path) -> dict[str, Any]:
    """A round after every step of plain SGD, beside the exact mode."""
    plain = replace(
        BASE, optimizer="sgd", momentum=0.0, lr=0.1, max_grad_norm=0.0, dropout=0.0, epochs=1,
        sync_every=1, precision="fp64",
    )  # fmt: skip
    local = train(ranks, plain, disk / "local")
    exact = train(ranks, replace(plain, sync="all_reduce"), disk / "exact")
    params = [torch.cat([p.flatten() for p in one.model.parameters()]) for one in (local, exact)]
    return {
        "losses": torch.tensor([losses(local), losses(exact)], dtype=torch.float64),
        "params": torch.stack(params).detach(),
    }


def goes_on(ranks: Ranks, config: TrainConfig, disk: Path) -> dict[str, bool]:
    """A run that makes a checkpoint, and one that ends there and is resumed.

    Not two of them: where the disk is still busy with one, the next comes later.
    """
    config = replace(config, batch_size=256, checkpoint_every=str(CUT), max_steps=2 * CUT - 1)
    whole = train(ranks, config, disk / "whole")
    train(ranks, replace(config, max_steps=CUT), disk / "cut")
    again = train(ranks, replace(config, resume="auto"), disk / "a", disk / "cut" / "checkpoints")
    return {
        "same on all ranks": same_everywhere(ranks, whole),
        "same losses": losses(again) == losses(whole)[CUT:],
        "same bits": torch.equal(bits(again), bits(whole)),
    }


def patchy(ranks: Ranks) -> bool:
    """Whether ranks agree where each has used other parameters than the others."""
    config = replace(BASE, batch_size=16, split="even", dropout=0.0, weight_decay=0.3)
    trainer = Builder(
        config, ranks, torch.device("cpu"), Patchy(config), Console(speaks=False),
        NoSinks(),  # type: ignore[arg-type]
    ).trainer()  # fmt: skip
    trainer.fit()
    return same_everywhere(ranks, trainer)


def rounds(ranks: Ranks, disk: Path) -> dict[str, Any]:
    """What two epochs of ten steps hand to collectives, with a round every four steps."""
    config = replace(BASE, epochs=2, train_samples=640, evaluate="end")
    trainer = train(ranks, config, disk)
    return {
        "payload": [one.payload_bytes for one in trainer.history.steps],
        "model": sum(param.nbytes for param in trainer.model.parameters()),
        "same": same_everywhere(ranks, trainer),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    with rendezvous.meet(World.find(os.environ), Meeting("cpu", "gloo")) as peers:
        ranks = ranks_of(peers.world)
        disk = folder / f"disk{ranks.rank}"
        diloco = replace(BASE, **DILOCO)
        found = {
            "every step": every_step(ranks, disk / "every"),
            "local SGD": goes_on(ranks, BASE, disk / "local"),
            "DiLoCo": goes_on(ranks, diloco, disk / "diloco"),
            "patchy": patchy(ranks),
            "rounds": rounds(ranks, disk / "rounds"),
        }
        for name, config in (("local SGD", BASE), ("DiLoCo", diloco)):
            trained = train(ranks, replace(config, split="even", epochs=6), disk / f"even-{name}")
            found[name]["accuracy"] = trained.history.evaluations[-1].metrics["accuracy"]
        if ranks.rank == 0:
            torch.save(found, folder / "found.pt")


if __name__ == "__main__":
    main()
    end_process(0)
