"""The training loop: the same losses in every sync mode, on any number of ranks, with any split."""

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

from configs.errors import MusterError
from configs.schema import TrainConfig
from train import batchnorm
from train.console import Console
from train.data import BatchPlan, StepPlan, first_samples, hash_seed
from train.evaluation import evaluate
from train.grad_sync import GradSync, all_gather, all_reduce, average_buffers
from train.measure.records import EvalRecord, StepRecord
from train.measure.sinks import Sinks
from train.measure.timer import PhaseTimer
from train.optimizer import build_optimizer, build_schedule
from train.precision import set_dropout
from train.task import Batch, Task
from train.world import World

FIRST_LOSSES = 5  # printed one by one, as the courses ask


@dataclass
class History:
    """What a finished run is summed up from, on every rank alike."""

    first_losses: list[float] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    evaluations: list[EvalRecord] = field(default_factory=list)


class Trainer:
    """Trains one task with one sync mode; everything that can be exchanged is built here.

    Raises:
        MusterError: the loss or the gradient stops being a number (on all ranks).
    """

    def __init__(
        self,
        config: TrainConfig,
        world: World,
        device: torch.device,
        task: Task,
        grad_sync: GradSync,
        console: Console,
        sinks: Sinks,
    ) -> None:
        self.config, self.world, self.device = config, world, device
        self.task, self.grad_sync, self.console, self.sinks = task, grad_sync, console, sinks
        self.datasets = first_samples(
            task.build_datasets(), config.train_samples, config.eval_samples
        )
        self.plan = BatchPlan(
            len(self.datasets.train),
            config.batch_size,
            config.split_weights() or (1.0,) * world.world_size,
            config.accumulation,
            config.seed,
        )
        seed_everything(config.seed)  # the same weights on every rank
        model = task.build_model()
        if config.dropout is not None:
            set_dropout(model, config.dropout)
        if config.batchnorm == "synced" and world.world_size > 1:
            model = batchnorm.convert(model, config.timeout_s)
        self.dtype = torch.float64 if config.precision == "fp64" else torch.float32
        self.model = grad_sync.wrap(model.to(device=device, dtype=self.dtype))
        self.optimizer = grad_sync.prepare(build_optimizer(config, self.model))
        self.schedule = build_schedule(config, self.optimizer, self.plan.steps_per_epoch)
        self.precision = grad_sync.precision(config, device)
        self.history = History()
        self.step = 0
        seed_everything(hash_seed(config.seed, world.rank))  # but not the same dropout

    def fit(self) -> History:
        """Train all epochs, or up to --max-steps, and evaluate."""
        total = self.config.epochs * self.plan.steps_per_epoch
        last = min(total, self.config.max_steps or total)
        self.console.start(last)
        epoch = -1
        for epoch in range(self.config.epochs):
            for plan, batches in self._batches(epoch, last):
                self._report(self._train_step(epoch, plan, batches))
            if self.step == (epoch + 1) * self.plan.steps_per_epoch:
                self._evaluate(epoch, when="epoch")
            if self.step == last:
                break
        self._evaluate(epoch, when="end")
        self.console.stop()
        return self.history

    def _train_step(self, epoch: int, plan: StepPlan, batches: Iterator[Batch]) -> StepRecord:
        timer = PhaseTimer(self.device)
        sent_before = self.grad_sync.payload_bytes
        self.model.train()
        local_loss = torch.zeros((), dtype=torch.float64, device=self.device)
        with timer.phase("data"):
            loaded = [next(batches) for _ in plan.micro_batches]
        with timer.phase("sync"):
            weights = self._loss_weights(plan, loaded)
        for number, (micro, weight) in enumerate(zip(loaded, weights, strict=True), start=1):
            with timer.phase("data"):
                batch = self._to_device(micro)
            is_last = number == len(loaded)
            batchnorm.count_samples(self.model, plan.micro_batches[number - 1].samples > 0)
            with nullcontext() if is_last else self.grad_sync.no_sync(self.model):
                with timer.phase("forward"), self.precision.autocast():
                    loss = (self.task.forward(self.model, batch).loss * weight).sum()
                with timer.phase("backward"):
                    self.grad_sync.backward(self.precision.scale(loss))
            local_loss += loss.detach()
        with timer.phase("sync"):
            global_loss = self._global_loss(local_loss)
            self.grad_sync.sync(self.model)
            average_buffers(self.world, self.model, plan.local_samples / plan.samples)
        with timer.phase("optimizer"):
            lr = float(self.schedule.get_last_lr()[0])
            grad_norm = self._clip()
            self.precision.step(self.optimizer)
            self.optimizer.zero_grad(set_to_none=True)
            self.schedule.step()
        self.step += 1
        return StepRecord(
            step=self.step,
            epoch=epoch + 1,
            rank=self.world.rank,
            loss=global_loss,
            samples=plan.samples,
            local_samples=plan.local_samples,
            data_s=timer.seconds["data"],
            forward_s=timer.seconds["forward"],
            backward_s=timer.seconds["backward"],
            sync_s=timer.seconds["sync"],
            optimizer_s=timer.seconds["optimizer"],
            step_s=timer.total_s(),
            lr=lr,
            grad_norm=grad_norm,
            payload_bytes=self.grad_sync.payload_bytes - sent_before,
        )

    def _loss_weights(self, plan: StepPlan, loaded: Sequence[Batch]) -> Sequence[float | Tensor]:
        """What scales each micro-batch's loss, so that a plain mean over ranks is the mean.

        By samples, the plan knows it. By units of the task's own, it is
        units * world_size / (units of the global batch), which the ranks add up.
        """
        counts = [self.task.units(batch) for batch in loaded]
        if counts[0] is None:
            return [micro.weight for micro in plan.micro_batches]
        counted = [  # the dummy of a rank that has nothing to compute counts for nothing
            torch.zeros_like(count) if micro.samples == 0 else count
            for count, micro in zip(counts, plan.micro_batches, strict=True)
            if count is not None
        ]
        local = torch.stack(counted).to(device=self.device, dtype=torch.float64)
        total = all_reduce(self.world, local.sum(0), dist.ReduceOp.SUM).clamp(min=1)
        return list(local * self.world.world_size / total)

    def _batches(self, epoch: int, last: int) -> Iterator[tuple[StepPlan, Iterator[Batch]]]:
        """The steps of an epoch that are still to do, each with its micro-batches."""
        plans = list(self.plan.epoch(epoch, self.world.rank))[: last - self.step]
        self.task.start_epoch(epoch)  # before the loader's processes take a copy of the samples
        loader: Iterable[Batch] = DataLoader(
            self.datasets.train,  # type: ignore[arg-type]
            batch_sampler=[list(micro.indices) for plan in plans for micro in plan.micro_batches],
            collate_fn=self.task.collate,
            num_workers=self.config.data_workers,
            pin_memory=self.device.type == "cuda",
        )
        batches = iter(loader)
        for plan in plans:
            yield plan, batches

    def _to_device(self, batch: Batch) -> Batch:
        return {
            name: tensor.to(
                device=self.device,
                dtype=self.dtype if tensor.is_floating_point() else None,
                non_blocking=True,
            )
            for name, tensor in batch.items()
        }

    def _global_loss(self, local: Tensor) -> float:
        """The mean loss over the global batch, which each rank has scaled its part of."""
        losses = all_gather(self.world, local.reshape(1)).flatten()
        broken = torch.nonzero(~torch.isfinite(losses)).flatten().tolist()
        if broken:
            ranks = ", ".join(map(str, broken))
            raise MusterError(
                f"step {self.step + 1}: the loss on rank {ranks} is {losses[broken[0]].item()}, "
                f"not a number to learn from; try a lower --lr than {self.config.lr}, "
                "or --precision fp32"
            )
        return losses.sum().item() / self.world.world_size

    def _clip(self) -> float:
        """Clip the synchronised gradient; its norm before that."""
        self.precision.unscale(self.optimizer)
        limit = self.config.max_grad_norm or float("inf")
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        if not numpy.isfinite(norm) and not self.precision.can_overflow:
            raise MusterError(
                f"step {self.step + 1}: the gradient's norm is {norm} on every rank; "
                f"try a lower --lr than {self.config.lr}"
            )
        return norm

    def _evaluate(self, epoch: int, when: str) -> None:
        wanted = self.config.evaluate == when or self.config.epochs == 0
        if not wanted or self.config.evaluate == "never":
            return
        record = evaluate(
            self.task, self.model, self.datasets, self.world, self.precision, self._to_device,
            self.config.eval_batch_size, step=self.step, epoch=epoch + 1,
        )  # fmt: skip
        self.history.evaluations.append(record)
        self.sinks.write(record)
        scores = "  ".join(f"{name} {value:.4f}" for name, value in record.metrics.items())
        self.console.line(f"epoch {record.epoch}  step {self.step}  {scores}")

    def _report(self, record: StepRecord) -> None:
        self.history.steps.append(record)
        self.sinks.write(record)
        self.console.advance(record.loss)
        if record.step <= FIRST_LOSSES:
            self.history.first_losses.append(record.loss)
        every = self.config.log_every
        if record.step % every == 0 if every else record.step <= FIRST_LOSSES:
            self.console.line(f"step {record.step}  loss {record.loss:.6f}")


def seed_everything(seed: int) -> None:
    """Seed python, numpy and torch (all devices)."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
