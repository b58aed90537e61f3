"""One of N workers of one process group on this machine, and what tests train there.

Started by `workers.results_of`: `on_ranks.py FILE FUNCTION FOLDER WORDS...` calls the function with
the `Ranks` of the group and the words; the result is saved in FOLDER.
"""

import importlib
import os
import sys
from pathlib import Path
from unittest.mock import Mock

import torch

from configs.settings.train import TrainConfig
from tests.train.retained import trainer_with_records
from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.loop.trainer import Trainer
from train.records.sinks import Console
from train.sync.ranks import Ranks, current_ranks
from train.tasks.base import Task
from train.worker import end_process


def trainer_of(config: TrainConfig, ranks: Ranks, task: Task) -> Trainer:
    """Make a trainer that writes nothing."""
    cpu, console = torch.device("cpu"), Console(speaks=False)
    nobody = [-1] * 4  # no rank writes
    return trainer_with_records(config, ranks, cpu, task, console, Mock(), firsts=nobody)


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the tensors' values in float64, one after another."""
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def main() -> None:
    file, name, folder, *words = sys.argv[1:]
    work = getattr(importlib.import_module(file), name)
    torch.set_num_threads(1)
    with rendezvous.meet(World.find(os.environ), Meeting("cpu", "gloo")) as peers:
        found = work(current_ranks(), *words)
        torch.save(found, Path(folder) / f"rank_{peers.world.rank}.pt")


if __name__ == "__main__":
    main()
    end_process(0)
