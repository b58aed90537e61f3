"""Evaluate over all ranks, each sample once; only --metrics exchange more than counts."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
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
from train.sync.ranks import HostCopy, Ranks, waits
from train.tasks.base import Batch, Datasets, Samples, Task

CPU = torch.device("cpu")
ANY_SAMPLE = [0]  # for a pass that only other ranks need
FEW = 4  # samples with which the names of metrics are found


@torch.no_grad()
@rng.preserved()  # a task's metric, or one of --metrics, may draw; dropout goes on as without it
def evaluate(
    task: Task,
    datasets: Datasets,
    state: TrainingState,
    config: TrainConfig,
    step: int,
    epoch: int,
    more: TaskMetrics | None = None,
) -> EvalRecord:
    """The metrics of every evaluation set, the same on all ranks, by one all_reduce per set.

    Every rank must call it. `step` and `epoch` are those of the record. The all_reduce sums a few
    numbers; no shared file or lock is needed. `more` are metrics of the library `evaluate`; rank 0
    collects their input from all ranks. The model is used without a sync mode's wrapper, since
    DDP's cannot run if ranks have different numbers of batches. In a sync mode that needs equally
    many, a rank with fewer repeats a sample, uncounted.
    """
    model = state.model
    ranks = state.grad_sync.ranks
    device = next(model.parameters()).device
    began = waits.now()
    predict_s = metric_s = 0.0
    model.eval()
    metrics: dict[str, float] = {}
    local_samples = 0
    for name, samples in datasets.evaluation.items():
        metric = task.metric(samples)
        collected = Predictions()
        lengths = lengths_of(task, samples) if config.length_balance else []
        positions, ahead = itertools.tee(
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
            (indices or ANY_SAMPLE for indices in ahead),
            task.collate,
            config,
            device,
            torch.Generator(),  # its own: it draws a number, and dropout's would go on
        )
        losses: list[Tensor] = []  # of each batch, by part of the loss, on the device
        counts: list[Tensor] = []  # and the units that they are means over

        loading = waits.now()
        for indices, batch, copied in feed.one_late(
            _passes(task, state, zip(positions, batches, strict=True), losses), device
        ):
            logits = copied.wait()  # where a GPU computes, this waits for it
            predicted = waits.now()
            predict_s += loading.computed_until(predicted)
            units = task.units(batch)
            counts.append(torch.tensor([len(indices)]) if units is None else units.cpu())
            labels = batch["labels"].cpu()
            metric.update(logits, labels, torch.tensor(indices))
            if more is not None:
                collected.add(*task.predictions(logits, labels), indices)
            local_samples += len(indices)
            loading = waits.now()
            metric_s += predicted.computed_until(loading)
        # for each part of the loss: its sum, and the number of units in the sum
        sums = torch.zeros(2, len(task.loss_parts), dtype=torch.float64)
        means = torch.stack(losses).cpu() if losses else ()
        for mean, units in zip(means, counts, strict=True):
            sums += torch.stack([mean * units, units])
        predict_s += loading.computed_until(waits.now())
        total = torch.cat([metric.state.flatten(), sums.flatten()])
        total = waits.during(_added_up, total.to(device), ranks)
        counted = waits.now()
        metric.state = total[: metric.state.numel()].view_as(metric.state)
        scores = {**metric.compute(), **_losses(task, total[metric.state.numel() :])}
        if more is not None:
            scores |= more.compute(collected, scores)
        metric_s += counted.computed_until(waits.now())
        metrics |= {f"{key}_{name}" if name else key: value for key, value in scores.items()}
    ended = waits.now()
    return EvalRecord(
        step=step, epoch=epoch, rank=ranks.rank,
        samples=sum(map(len, datasets.evaluation.values())), local_samples=local_samples,
        eval_s=ended.at_s - began.at_s, metrics=metrics,
        predict_s=predict_s, metric_s=metric_s, sync_s=began.waited_until(ended),
    )  # fmt: skip


def _passes(
    task: Task,
    state: TrainingState,
    loaded: Iterable[tuple[list[int], Batch]],
    losses: list[Tensor],
) -> Iterator[tuple[list[int], Batch, HostCopy]]:
    """Of each batch that counts: its samples, it on the host, and its logits; `losses` grows."""
    device = next(state.model.parameters()).device
    for indices, own in loaded:
        with state.precision.autocast():
            batch = to_device(own, state.model, device)
            output = task.forward(state.model, batch)
        if indices:
            losses.append(output.loss.detach().double().reshape(-1))
            on_host = batch if device.type == "cpu" else to_device(own, state.model, CPU)
            yield indices, on_host, HostCopy(output.logits.float())


def _added_up(counts: Tensor, ranks: Ranks) -> Tensor:
    """Of all ranks, on the CPU."""
    return ranks.all_reduce(counts, dist.ReduceOp.SUM).cpu()


def require_metric(
    name: str,
    task: Task,
    datasets: Datasets,
    state: TrainingState,
    config: TrainConfig,
    more: TaskMetrics | None,
) -> None:
    """Refuse a --keep-best that no evaluation has, before the first step; collective.

    The names of a task's own metrics are known without samples. Those of `more` are found by an
    evaluation of a few samples. If such a metric fails, the first evaluation decides.

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
        raise UsageError(f"--keep-best {name}: there is {', '.join(sorted(names)) or 'no metric'}")


def _losses(task: Task, sums: Tensor) -> dict[str, float]:
    """The loss by name, and its parts if there are several, from sums and counts (2 * parts,)."""
    loss_sums, units = sums.view(2, -1)
    means = (loss_sums / units.clamp(min=1)).tolist()
    parts = {f"eval_{name}": mean for name, mean in zip(task.loss_parts, means, strict=True)}
    return {"eval_loss": math.fsum(means), **(parts if len(parts) > 1 else {})}


def lengths_of(task: Task, samples: Samples) -> Sequence[int]:
    """The number of tokens of each sample; empty if unknown or equal for all."""
    if isinstance(samples, Subset):
        all_lengths = task.lengths(samples.dataset)  # type: ignore[arg-type]
        lengths = None
        if all_lengths is not None:
            lengths = all_lengths[torch.as_tensor(samples.indices, dtype=torch.long)]
    else:
        lengths = task.lengths(samples)
    return packed("q", lengths) if lengths is not None and len(lengths.unique()) > 1 else []
