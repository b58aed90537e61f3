"""Evaluate over all ranks, each sample once, by one all_reduce per set; --metrics need more."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from configs.settings.train import TrainConfig
from muster.errors import MusterError, UsageError
from train.batches.plan import evaluation_indices, packed
from train.evaluation.task_metrics import Predictions, TaskMetrics
from train.loop import feed
from train.loop.state import TrainingState
from train.loop.step import to_device
from train.model import rng
from train.records.schema import EvalRecord
from train.sync.ranks import HostCopy, waits
from train.tasks.base import Batch, Datasets, Output, Samples, Task

CPU = torch.device("cpu")
ANY_SAMPLE = [0]  # for a pass that only other ranks need
FEW = 4  # samples with which the names of metrics are found


class Pass(NamedTuple):
    """One batch of n samples on the host, and the model's results for it."""

    positions: list[int]  # n, in the whole set
    batch: Batch
    loss: HostCopy  # float64 (parts,)
    logits: HostCopy  # (n, ...)


class SetResult(NamedTuple):
    """Scores of one evaluation set, the same on all ranks; samples and seconds are this rank's."""

    scores: dict[str, float]
    local_samples: int
    predict_s: float
    metric_s: float


@torch.no_grad()
@rng.preserved()  # metrics may draw random numbers, which must not affect dropout
def evaluate(
    task: Task,
    datasets: Datasets,
    state: TrainingState,
    config: TrainConfig,
    step: int,
    epoch: int,
    more: TaskMetrics | None = None,
) -> EvalRecord:
    """Compute the metrics of every evaluation set, the same on all ranks: one all_reduce per set.

    Every rank must call it. `step` and `epoch` are for the record. `more` are metrics of the
    library `evaluate`; rank 0 collects their input from all ranks.
    """
    ranks = state.grad_sync.ranks
    began = waits.now()
    results = {
        name: _evaluate_set(task, samples, state, config, more)
        for name, samples in datasets.evaluation.items()
    }
    ended = waits.now()
    return EvalRecord(
        step=step, epoch=epoch, rank=ranks.rank,
        samples=sum(map(len, datasets.evaluation.values())),
        local_samples=sum(result.local_samples for result in results.values()),
        eval_s=ended.at_s - began.at_s,
        metrics={
            f"{key}_{name}" if name else key: value
            for name, result in results.items()
            for key, value in result.scores.items()
        },
        predict_s=sum(result.predict_s for result in results.values()),
        metric_s=sum(result.metric_s for result in results.values()),
        sync_s=began.waited_until(ended),
    )  # fmt: skip


def _evaluate_set(
    task: Task,
    samples: Samples,
    state: TrainingState,
    config: TrainConfig,
    more: TaskMetrics | None,
) -> SetResult:
    """Count this rank's own samples, and add up the counts of all ranks."""
    metric = task.metric(samples)
    collected = Predictions()
    # for each part of the loss: its sum over units, and the number of units
    sums = torch.zeros(2, len(task.loss_parts), dtype=torch.float64)
    local_samples = 0
    predict_s = metric_s = 0.0
    lengths = lengths_of(task, samples) if config.length_balance else []
    loading = waits.now()
    of_samples = passes(state, samples, task.collate, task.forward, config, lengths)
    for positions, loaded, loss, copied in of_samples:
        logits = copied.wait()  # this waits for a GPU
        predicted = waits.now()
        predict_s += loading.computed_until(predicted)
        batch = to_device(loaded, state.model, CPU)
        units = task.units(batch)
        counted = torch.tensor([len(positions)]) if units is None else units
        sums += torch.stack([loss.wait() * counted, counted])
        metric.update(logits, batch["labels"], torch.tensor(positions))
        if more is not None:
            collected.add(*task.predictions(logits, batch["labels"]), positions)
        local_samples += len(positions)
        loading = waits.now()
        metric_s += predicted.computed_until(loading)
    predict_s += loading.computed_until(waits.now())
    local = torch.cat([metric.state.flatten(), sums.flatten()])
    local = local.to(next(state.model.parameters()).device)
    total = waits.during(lambda: state.grad_sync.ranks.all_reduce(local).cpu())
    added = waits.now()
    metric.state = total[: metric.state.numel()].view_as(metric.state)
    scores = {**metric.compute(), **_losses(task, total[metric.state.numel() :])}
    if more is not None:
        scores |= more.compute(collected, scores)
    metric_s += added.computed_until(waits.now())
    return SetResult(scores, local_samples, predict_s, metric_s)


def passes(
    state: TrainingState,
    samples: Any,
    collate: Callable[[Any], Batch],
    forward: Callable[[nn.Module, Batch], Output],
    config: TrainConfig,
    lengths: Sequence[int] = (),
) -> Iterator[Pass]:
    """Yield this rank's part of `samples`, one batch at a time; over all ranks, each sample once.

    The model is used without a sync mode's wrapper, since DDP cannot run if ranks have different
    numbers of batches. In a sync mode that needs the same number on all ranks, a rank with fewer
    batches repeats a sample, which is left out of the results.
    """
    model, ranks = state.model, state.grad_sync.ranks
    device = next(model.parameters()).device
    parts = list(
        evaluation_indices(
            len(samples),
            ranks.rank,
            ranks.world_size,
            config.eval_batch_size,
            lengths,
            same_passes=state.grad_sync.same_passes,
        )
    )
    batches = feed.loader(
        samples,
        [positions or ANY_SAMPLE for positions in parts],
        collate,
        config,
        device,
        torch.Generator(),  # its own: it draws a number, which must not affect dropout
    )

    def computed() -> Iterator[Pass]:
        for positions, batch in zip(parts, batches, strict=True):
            with state.precision.autocast():
                output = forward(model, to_device(batch, model, device))
            if positions:
                loss = output.loss.double().reshape(-1)
                yield Pass(positions, batch, HostCopy(loss), HostCopy(output.logits.float()))

    model.eval()
    return feed.delayed_by_one(computed(), device)


def require_metric(
    name: str,
    task: Task,
    datasets: Datasets,
    state: TrainingState,
    config: TrainConfig,
    more: TaskMetrics | None,
) -> None:
    """Refuse a --keep-best metric that no evaluation has, before the first step; collective.

    The names of a task's own metrics are known without samples. The names in `more` are found by
    evaluating a few samples. If such a metric fails, the first evaluation decides.

    Raises:
        UsageError: there is no metric of this name.
    """
    sets = datasets.evaluation
    nothing = torch.zeros(2 * len(task.loss_parts))
    try:
        names = {
            f"{key}_{set_name}" if set_name else key
            for set_name, samples in sets.items()
            for key in (
                *task.metric(samples).compute(),
                *_losses(task, nothing),
            )
        }
    except Exception:  # noqa: BLE001  a task's own metric may not be defined without samples
        return
    if more is not None and name not in names:
        few: dict[str, Samples] = {
            set_name: Subset(samples, range(min(FEW, len(samples))))  # type: ignore[arg-type]
            for set_name, samples in sets.items()
        }
        try:
            tried = evaluate(task, Datasets(datasets.train, few), state, config, 0, 0, more)
        except MusterError:
            return
        names = set(tried.metrics)
    if name not in names:
        raise UsageError(
            f"--keep-best {name}: no such metric; the evaluation has "
            f"{', '.join(sorted(names)) or 'none'}"
        )


def _losses(task: Task, sums: Tensor) -> dict[str, float]:
    """Compute the loss, and its parts if there are several, from sums and counts (2 * parts,)."""
    loss_sums, units = sums.view(2, -1)
    means = (loss_sums / units.clamp(min=1)).tolist()
    parts = {f"eval_{name}": mean for name, mean in zip(task.loss_parts, means, strict=True)}
    return {"eval_loss": math.fsum(means), **(parts if len(parts) > 1 else {})}


def lengths_of(task: Task, samples: Samples) -> Sequence[int]:
    """Return the number of tokens of each sample; empty if unknown or the same for all."""
    if isinstance(samples, Subset):
        all_lengths = task.lengths(samples.dataset)  # type: ignore[arg-type]
        lengths = None
        if all_lengths is not None:
            lengths = all_lengths[torch.as_tensor(samples.indices, dtype=torch.long)]
    else:
        lengths = task.lengths(samples)
    return packed("q", lengths) if lengths is not None and len(lengths.unique()) > 1 else []
