"""Predict the labels of sets that have none, over all ranks; written as GLUE's site takes them."""

import functools
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from muster import run_files
from muster.errors import UsageError
from muster.writing import write_text
from train.batches.plan import evaluation_indices
from train.distributed.agreement import gather, of_each
from train.loop import feed
from train.loop.evaluation import ANY_SAMPLE
from train.loop.step import to_device
from train.loop.trainer import Trainer
from train.sync.ranks import HostCopy
from train.tasks.base import PredictingTask, Unlabelled


def unlabelled_sets(trainer: Trainer) -> dict[str, Unlabelled]:
    """The task's sets without labels, by the names of their files of predictions. Collective.

    Raises:
        UsageError: it has none, or a file is missing or wrong.
    """
    task = trainer.task
    sets: dict[str, Unlabelled] = {}
    if not isinstance(task, PredictingTask):
        raise UsageError(f"--predict: --task {trainer.config.task} has no sets without labels")
    of_each(trainer.ranks.world_size, lambda: sets.update(task.unlabelled()))
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
    """The row and the prediction of each sample of this rank's part."""
    ranks = trainer.ranks
    state = trainer.state
    task = trainer.task
    assert isinstance(task, PredictingTask)
    batch_size = trainer.config.eval_batch_size
    size = len(unlabelled.keys)
    parts = evaluation_indices(
        size, ranks.rank, ranks.world_size, batch_size, same_passes=trainer.grad_sync.same_passes
    )
    parts, ahead = itertools.tee(parts)
    batches = feed.loader(
        range(size),  # a sample is its row
        (rows or ANY_SAMPLE for rows in ahead),
        functools.partial(task.batch_of, unlabelled),
        trainer.config,
        trainer.device,
        torch.Generator(),
    )

    def passes() -> Iterator[tuple[list[int], HostCopy]]:
        for rows, batch in zip(parts, batches, strict=True):
            with state.precision.autocast():
                logits = task.logits(state.model, to_device(batch, state.model, trainer.device))
            if rows:
                yield rows, HostCopy(logits.float())

    state.model.eval()
    answers: list[tuple[int, str]] = []
    for rows, logits in feed.one_late(passes(), trainer.device):
        answers += zip(rows, task.answers(logits.wait()), strict=True)
    return answers
