"""Evaluate over all ranks: each sample once, and what is exchanged is counts, not predictions."""

import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from train.data import evaluation_indices
from train.grad_sync import all_reduce
from train.measure.records import EvalRecord
from train.precision import Precision
from train.task import Batch, Datasets, Task
from train.world import World


@torch.no_grad()
def evaluate(
    task: Task,
    model: nn.Module,
    datasets: Datasets,
    world: World,
    precision: Precision,
    to_device: Callable[[Batch], Batch],
    batch_size: int,
    *,
    step: int,
    epoch: int,
) -> EvalRecord:
    """The metrics of every evaluation set, the same on all ranks, by one all_reduce per set.

    Its cost does not grow with the number of ranks, and nothing needs a shared file or a lock.
    """
    started = time.perf_counter()
    # Without DDP's wrapper: it may not run where ranks have different numbers of batches.
    plain = getattr(model, "module", model)
    plain.eval()
    metrics: dict[str, float] = {}
    local_samples = 0
    for name, samples in datasets.evaluation.items():
        metric = task.metric(samples)
        cut = evaluation_indices(len(samples), world.rank, world.world_size, batch_size)
        positions = [list(part) for part in cut]
        loader: Iterable[Batch] = DataLoader(
            samples,  # type: ignore[arg-type]  # any map-style dataset will do
            batch_sampler=positions,
            collate_fn=task.collate,
        )
        loss_sum = 0.0
        for at, batch in zip(positions, map(to_device, loader), strict=True):
            with precision.autocast():
                output = task.forward(plain, batch)
            loss_sum += output.loss.item() * len(at)
            metric.update(output.logits.float().cpu(), batch["labels"].cpu(), torch.tensor(at))
            local_samples += len(at)
        device = next(plain.parameters()).device
        total = torch.cat([metric.state.flatten(), torch.tensor([loss_sum], dtype=torch.float64)])
        total = all_reduce(world, total.to(device), dist.ReduceOp.SUM).cpu()
        metric.state = total[:-1].view_as(metric.state)
        scores = {**metric.compute(), "eval_loss": total[-1].item() / len(samples)}
        metrics |= {f"{key}_{name}" if name else key: value for key, value in scores.items()}
    return EvalRecord(
        step=step,
        epoch=epoch,
        rank=world.rank,
        samples=sum(map(len, datasets.evaluation.values())),
        local_samples=local_samples,
        eval_s=time.perf_counter() - started,
        metrics=metrics,
    )
