"""A step goes through few files: each is one that whoever reads the loop has to open."""

import sys
from pathlib import Path

import torch

from configs.settings.train import TrainConfig
from tests.launch.walked.sitecustomize import tracer
from tests.train.workers import results_of
from train.loop.trainer import Trainer
from train.records.sinks import Console, Sinks
from train.sync.ranks import Ranks
from train.tasks.synthetic import Synthetic

MOST = 10  # the task's own included; they were 22
TRACED = 6  # the steps before it: after the losses that are printed one by one


def files_of_a_step(ranks: Ranks, folder: str) -> list[str]:
    """From where one step begins to where the next one does."""
    config = TrainConfig(
        task="synthetic", sync="all_reduce", batch_size=256, device="cpu", evaluate="never"
    )
    console, sinks = Console(speaks=ranks.rank == 0), Sinks(Path(folder), ranks.rank)
    trainer = Trainer(config, ranks, torch.device("cpu"), Synthetic(config), console, sinks)
    entered = set[str]()
    take = trainer._step.run

    def run(*given):
        if trainer.at.step == TRACED:
            sys.setprofile(tracer(entered.add))
        elif trainer.at.step == TRACED + 1:
            sys.setprofile(None)
        return take(*given)

    trainer._step.run = run  # type: ignore[method-assign]
    trainer.fit()
    sinks.close()
    return sorted(entered)


def test_a_step_of_all_reduce_enters_few_files(tmp_path):
    found = results_of(files_of_a_step, 2, tmp_path, str(tmp_path / "run"))
    for files in found:
        assert len(files) <= MOST, f"{len(files)} files:\n{chr(10).join(files)}"
        assert {"train/loop/step.py", "train/sync/modes/all_reduce.py"} <= {*files}
