"""One of N workers that train with every way to compress, stop and go on: `... FOLDER`.

Each rank has a disk of its own, of which only rank 0's holds checkpoints. Rank 0 writes accuracies
and the bytes of a step.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from configs import plugins
from configs.settings.train import TrainConfig
from tests.train.retained import train
from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.loop.build import ranks_of
from train.loop.trainer import Trainer
from train.sync.ranks import Ranks
from train.worker import end_process

CUT = 11
CASES = [
    ("all_reduce", "none"),
    *(("all_reduce", way) for way in plugins.names("train.sync.compression")),
    *((mode, way) for mode in ("ddp", "accelerate") for way in ("bf16", "powersgd")),
]
BASE = TrainConfig(
    task="synthetic", lr=0.01, epochs=3, batch_size=64, device="cpu", split="3,1",
    bucket_mb=0.004, compress_rank=1, compress_share=0.2,
)  # fmt: skip


def bits(trainer: Trainer) -> torch.Tensor:
    params = list(trainer.state.model.parameters())
    states = [trainer.state.optimizer.state[param] for param in params]
    retained = [one[key] for one in states for key in sorted(one)]
    flat = [tensor.detach().flatten().double() for tensor in (*params, *retained)]
    return torch.cat(flat).view(torch.uint8)


def losses(trainer: Trainer) -> list[float]:
    return [one.loss for one in trainer.history.steps]


def case(ranks: Ranks, mode: str, way: str, disk: Path) -> dict[str, Any]:
    config = replace(BASE, sync=mode, compress=way)
    whole = train(ranks, config, disk / "whole")
    assert (ranks.all_gather(bits(whole)) == bits(whole)).all(), f"{mode} {way}: ranks differ"
    cut = replace(config, max_steps=CUT, checkpoint_every=str(CUT))
    train(ranks, cut, disk / "cut")
    again = replace(config, resume="auto")
    found = train(ranks, again, disk / "again", disk / "cut" / "checkpoints")
    assert losses(found) == losses(whole)[CUT:], f"{mode} {way}: not the same losses"
    assert torch.equal(bits(found), bits(whole)), f"{mode} {way}: not the same bits"
    return {
        "accuracy": whole.history.evaluations[-1].metrics["accuracy"],
        "losses": losses(whole),
        "payload": [one.payload_bytes for one in whole.history.steps],
    }


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    with rendezvous.meet(World.find(os.environ), Meeting("cpu", "gloo")) as peers:
        disk = folder / f"disk{peers.world.rank}"
        found = {
            f"{mode} {way}": case(ranks_of(peers.world), mode, way, disk / f"{mode}-{way}")
            for mode, way in CASES
        }
        if peers.world.is_main:
            torch.save(found, folder / "found.pt")


if __name__ == "__main__":
    main()
    end_process(0)
