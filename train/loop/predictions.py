"""Predict labels of unlabelled sets, over all ranks; write them in the format of GLUE's site."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from muster import run_files
from muster.errors import UsageError
from muster.writing import write_text
from train.distributed.agreement import gather, gather_results
from train.loop.evaluation import passes
from train.loop.trainer import Trainer
from train.tasks.base import Batch, Output, PredictingTask, Unlabelled


def unlabelled_sets(trainer: Trainer) -> dict[str, Unlabelled]:
    """Return the task's unlabelled sets, by the names of their prediction files. Collective.

    Raises:
        UsageError: the task has none, or a file is missing or wrong.
    """
    task = trainer.task
    sets: dict[str, Unlabelled] = {}
    if not isinstance(task, PredictingTask):
        raise UsageError(f"--predict: --task {trainer.config.task} has no unlabelled sets")
    gather_results(trainer.ranks.world_size, lambda: sets.update(task.unlabelled()))
    return sets


def write_predictions(
    trainer: Trainer, sets: Mapping[str, Unlabelled], run_dir: Path
) -> list[Path]:
    """Predict each of the `sets` over all ranks; rank 0 writes a file for each. Collective."""
    ranks = trainer.ranks
    paths: list[Path] = []
    for name, unlabelled in sets.items():
        of_ranks = gather(ranks.world_size, _predict(trainer, unlabelled))
        of_rows = dict(pair for pairs in of_ranks for pair in pairs)
        path = run_files.PREDICTIONS.path(run_dir, name=name)
        if ranks.rank == 0:
            rows = enumerate(unlabelled.keys)
            lines = [f"{key}\t{of_rows[row]}\n" for row, key in rows]
            write_text(path, "".join(["index\tprediction\n", *lines]))
        paths.append(path)
    return paths


@torch.no_grad()
def _predict(trainer: Trainer, unlabelled: Unlabelled) -> list[tuple[int, str]]:
    """Return the row and the prediction of each sample in this rank's part."""
    task: Any = trainer.task

    def forward(model: nn.Module, batch: Batch) -> Output:
        return Output(torch.zeros(()), task.logits(model, batch))  # no labels, so no loss

    rows = range(len(unlabelled.keys))  # a sample is its row
    collate = functools.partial(task.batch_of, unlabelled)
    answers: list[tuple[int, str]] = []
    for positions, _, _, logits in passes(trainer.state, rows, collate, forward, trainer.config):
        answers += zip(positions, task.answers(logits.wait()), strict=True)
    return answers
