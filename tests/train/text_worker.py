"""Small trainings of the text tasks at several numbers of ranks, all from one process.

Started by test_text_equality.py: `text_worker.py FOLDER` finds settings per case in FOLDER and
writes there the losses and final parameters of each. The ranks are forks of a process that has
imported everything and has not computed anything yet, which saves their start.
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
from tests.train.workers import free_port
from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.loop.build import Builder, ranks_of
from train.records.console import Console
from train.sync.ranks import Ranks

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


def rank_of(world_size: int, rank: int, port: int, cases: dict[str, Any], folder: Path) -> None:
    torch.set_num_threads(1)
    by_hand = {"master_ip": "127.0.0.1", "master_port": port, "world_size": world_size}
    world = World.find({}, rank=rank, **by_hand)  # type: ignore[arg-type]
    found = {}
    with rendezvous.meet(world, Meeting("cpu", "gloo")) as peers:
        for name, settings in cases.items():
            for split in SPLITS[world_size]:
                found[f"{name}|{split}"] = train(
                    config_of(settings, world_size, split), ranks_of(peers.world)
                )
    if rank == 0:
        torch.save(found, folder / f"ranks_{world_size}.pt")


def main() -> int:
    import transformers.models.bert.modeling_bert  # noqa: F401 (before the forks, once for all)

    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases.json").read_text())
    for settings in cases.values():
        load("train.tasks", settings["task"])(config_of(settings, 1, "even")).prepare()
    for world_size in SPLITS:
        port = free_port()
        children = []
        for rank in range(world_size):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    rank_of(world_size, rank, port, cases, folder)
                    code = 0
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]  # of all, before the next
        if any(codes):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
