"""One of N workers of small trainings of the text tasks, of one process group.

Started by test_text_equality.py: `text_worker.py FOLDER` finds settings per case in FOLDER, and
rank 0 writes there the losses and final parameters of each.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from configs.plugins import load
from configs.settings.train import TrainConfig
from tests.train.matrix_worker import NoSinks
from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.loop.build import Builder, ranks_of
from train.records.console import Console
from train.sync.ranks import Ranks
from train.worker import end_process

SPLITS = {1: ["even"], 2: ["5,3", "0,1"], 3: ["4,1,2", "1,0,3"]}
STEPS = 5


def config_of(settings: dict[str, Any], world_size: int, split: str) -> TrainConfig:
    paths = {name: Path(settings[name]) for name in ("data_dir", "cache_dir")}
    return TrainConfig(
        **{
            **settings,
            **paths,
            "sync": "single" if world_size == 1 else "ddp",
            "split": split,
            "precision": "fp64",
            "dropout": 0.0,
            "length_balance": world_size > 1,
            "max_steps": STEPS,
            "accumulation": 1 if world_size == 1 else 2,
            "evaluate": "end",
            "device": "cpu",
        }
    )


def train(config: TrainConfig, ranks: Ranks) -> dict[str, torch.Tensor]:
    task = load("train.tasks", config.task)(config)
    if ranks.world_size == 1:
        task.prepare()  # for all that come after it
    trainer = Builder(
        config,
        ranks,
        torch.device("cpu"),
        task,
        Console(speaks=False),
        NoSinks(),  # type: ignore[arg-type]
    ).trainer()
    history = trainer.fit()
    (scores,) = history.evaluations
    return {
        "losses": torch.tensor([step.loss for step in history.steps], dtype=torch.float64),
        "scores": torch.tensor([scores.metrics[name] for name in sorted(scores.metrics)]),
        "params": torch.cat([p.detach().flatten() for p in trainer.model.parameters()]),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    found = {}
    with rendezvous.meet(World.find(os.environ), Meeting("cpu", "gloo")) as peers:
        ranks = ranks_of(peers.world)
        for name, settings in json.loads((folder / "cases.json").read_text()).items():
            for split in SPLITS[ranks.world_size]:
                config = config_of(settings, ranks.world_size, split)
                found[f"{name}|{split}"] = train(config, ranks)
        if ranks.rank == 0:
            torch.save(found, folder / f"ranks_{ranks.world_size}.pt")


if __name__ == "__main__":
    main()
    end_process(0)
