"""The parts of an optimizer step: forward and backward over this rank's part, sync, clip, update.

The optimizer and its learning rate step once, whatever the number of ranks. A step that fp16 skips
moves neither.

With n_r of the M samples of the global batch on rank r of W, each micro-batch's mean loss is
scaled by (its samples) * W / M. The sum over this rank's micro-batches is then its part of the
global mean, times W; so the plain mean over ranks, which every sync mode computes, is the mean
over all M samples of loss and gradient, whatever the split.

Collectives of a step, in this order on every rank; the numbers are those of the loop in trainer.py:

    (1) the sum of the task's units, if it counts units other than samples
    (2) what the sync mode sends during the backward pass
    (3) the exchange of program/exchange.py, with a mark for each buffer, and which gradients the
        rank has, if the mode needs it
    (4) what the mode's `sync` sends
    (5) one number from each rank for the norm, if gradients are split
    (6) what the mode sends after the update: parameters
    (7) the mean of the buffers that some rank has changed

The host gives a GPU all of a step without waiting for it, with these exceptions: fp16, whose
schedule steps only if no gradient has overflowed; a rank that lacks gradients that others have;
gloo, which sends from the host; (7). Then the host reads the exchange, for which it waits until the
end of the backward pass. The exchange decides, in the same way on all ranks, whether this step is
saved or is the last; until then the next step must not change parameters, buffers or random
numbers. The other numbers of a record are read when a GPU has been given the next step.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.profiler import record_function

from configs.settings.train import TrainConfig
from muster.errors import MusterError
from train.batches.plan import StepPlan
from train.loop.state import TrainingState
from train.program.exchange import Shared
from train.sync import batchnorm
from train.sync.buffers import Buffers
from train.sync.ranks import moved
from train.tasks.base import Batch, Task


class TrainedModel:
    """The parts of a step on one model; `wrapped` is the model in its sync mode's wrapper."""

    def __init__(
        self, task: Task, state: TrainingState, wrapped: nn.Module, max_grad_norm: float
    ) -> None:
        self.task, self.model, self.state, self.max_grad_norm = task, wrapped, state, max_grad_norm
        self.grad_sync, self.ranks = state.grad_sync, state.grad_sync.ranks
        self.device = next(wrapped.parameters()).device
        self.buffers = Buffers(self.ranks, wrapped)
        # most losses are means over samples, for which a step need not count units
        self._counts_units = getattr(type(task), "units", Task.units) is not Task.units
        self._autocast = state.precision.autocast()
        # found once, since walking through the modules of a BERT takes half a millisecond
        self._params = list(wrapped.parameters())
        self._batchnorms = batchnorm.synced_layers(wrapped)
        wrapped.train()

    def load(self, plan: StepPlan, batches: Iterator[Batch]) -> list[Batch]:
        """Return this rank's micro-batches."""
        if not self.state.model.training:  # an evaluation came before
            self.model.train()
        with named("data"):
            return [next(batches) for _ in plan.micro_batches]

    def forward_backward(
        self, plan: StepPlan, loaded: Sequence[Batch], weights: Sequence[float | Tensor]
    ) -> Tensor:
        """Forward and backward over this rank's micro-batches; returns its part of the loss."""
        local_loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for micro, own, weight in zip(plan.micro_batches, loaded, weights, strict=True):
            with named("data"):
                batch = to_device(own, self.model, self.device)
            if self._batchnorms:
                batchnorm.count_samples(self._batchnorms, micro.samples > 0)
            with nullcontext() if micro.is_last else self.grad_sync.no_sync(self.model):
                with named("forward"), self._autocast:
                    loss = (self.task.forward(self.model, batch).loss * weight).sum()
                with named("backward"):
                    self.grad_sync.backward(self.state.precision.scale(loss))
            local_loss += loss.detach()
        return local_loss

    def buffer_marks(self) -> Tensor:
        """Return how each buffer has changed on this rank; see sync/buffers.py."""
        return self.buffers.marks(self.device) if self.buffers.watched else torch.zeros(0)

    def average_buffers(self, plan: StepPlan, shared: Shared) -> None:
        """Average the buffers that some rank has changed.

        The host reads from the exchange which buffers these are. So this comes last, when a GPU has
        been given the rest of the step.
        """
        if self.buffers.watched:
            with named("sync"):
                self.buffers.average(plan.local_samples / plan.samples, shared.more[0])

    def loss_weights(self, plan: StepPlan, loaded: Sequence[Batch]) -> Sequence[float | Tensor]:
        """Return a factor for each micro-batch's loss: the mean over ranks is then the global mean.

        For a mean over samples, the plan contains it. For a mean over the task's own units it is
        units * world_size / (units of the global batch); an all_reduce adds up the units.
        """
        with named("sync"):
            counts = [self.task.units(batch) for batch in loaded] if self._counts_units else [None]
            if counts[0] is None:
                return [micro.weight for micro in plan.micro_batches]
            counted = [  # the dummy batch of a rank without samples counts as zero
                torch.zeros_like(count) if micro.samples == 0 else count
                for count, micro in zip(counts, plan.micro_batches, strict=True)
                if count is not None
            ]
            local = moved(torch.stack(counted), self.device, torch.float64)
            total = self.ranks.all_reduce(local.sum(0), dist.ReduceOp.SUM).clamp(min=1)
            return list(local * self.ranks.world_size / total)

    def clip(self) -> Tensor:
        """Clip the gradients; return their norm before that."""
        with named("optimizer"):
            self.state.precision.unscale_(self.state.optimizer)  # before the clipping
            return self.grad_sync.clip(self._params, self.max_grad_norm)

    def update(self) -> float:
        """Step the optimizer and its schedule; return the learning rate of this step.

        Neither steps if a gradient has overflowed in fp16.
        """
        lr = float(self.state.schedule.get_last_lr()[0])
        with named("optimizer"):
            precision = self.state.precision
            precision.step(self.state.optimizer)
            before = precision.get_scale() if precision.can_overflow else 0.0
            precision.update()  # it lowers the scale after an overflow
            self.state.optimizer.zero_grad(set_to_none=True)
            if not precision.can_overflow or precision.get_scale() >= before:
                self.state.schedule.step()
        with named("sync"):
            self.grad_sync.updated(self.model)
        return lr

    def require_finite(self, step: int, shared: Shared, norm: float) -> None:
        """Refuse to continue after `step` if its loss or gradient is not finite.

        Raises:
            MusterError: the loss or a gradient is no longer finite (on all ranks).
        """
        where = f"step {step}: the"
        remedy = f"try a lower --lr than {self.state.schedule.base_lrs[0]}"
        if broken := _not_finite(shared.losses):
            loss, ranks = shared.losses[broken[0]], ", ".join(map(str, broken))
            raise MusterError(
                f"{where} loss on rank {ranks} is {loss}, so training cannot continue"
                f"\ntip: {remedy}, or --precision fp32"
            )
        is_exact = self.grad_sync.is_exact
        norms = [norm] if is_exact else shared.norms
        broken = _not_finite(norms)
        if broken and not self.state.precision.can_overflow:
            ranks = ", ".join(map(str, broken))
            on = "every rank" if is_exact else f"rank {ranks}"
            raise MusterError(
                f"{where} gradient's norm is {norms[broken[0]]} on {on}\ntip: {remedy}"
            )


def named(phase: str) -> record_function:
    """A context that gives a part of a step its name in a trace."""
    return record_function(f"muster.{phase}")


def _not_finite(numbers: Sequence[float]) -> list[int]:
    return [rank for rank, number in enumerate(numbers) if not math.isfinite(number)]


def to_device(batch: Batch, model: nn.Module, device: torch.device) -> Batch:
    """Return `batch` on `device`, with floats in the precision of `model`.

    Labels have at least float32: bfloat16 cannot represent a score such as 2.6.
    """
    dtype = next(param.dtype for param in model.parameters() if param.is_floating_point())
    of_labels = torch.promote_types(dtype, torch.float32)

    def kind(name: str, tensor: Tensor) -> torch.dtype | None:
        if not tensor.is_floating_point():
            return None
        return of_labels if name == "labels" else dtype

    return {name: moved(tensor, device, kind(name, tensor)) for name, tensor in batch.items()}


def schedule_end(config: TrainConfig, epoch_steps: int) -> int:
    """Return the step at which the decay of the learning rate ends."""
    return config.schedule_steps or config.epochs * epoch_steps


def build_schedule(
    config: TrainConfig, optimizer: Optimizer, epoch_steps: int, task: Task | None = None
) -> LambdaLR:
    """Build the task's schedule, or else linear warm-up, then decay or a constant rate.

    `polynomial` falls to --end-lr by (1 - progress) ** power, as in fairseq's and NVIDIA's BERT;
    `linear` is the case with power 1 and end 0. The end of the schedule does not depend on
    --max-steps: a run that stops early has used the same rates.
    """
    horizon = schedule_end(config, epoch_steps)
    own = None if task is None else task.schedule(horizon)
    if own is not None:
        return LambdaLR(optimizer, own)
    power, end = 1.0, 0.0
    if config.schedule == "polynomial":
        power, end = config.power, config.end_lr / config.lr

    def factor(step: int) -> float:
        if step < config.warmup_steps:
            return step / config.warmup_steps
        if config.schedule == "constant":
            return 1.0
        left = max(0.0, (horizon - step) / max(1, horizon - config.warmup_steps))
        return float(end + (1 - end) * left**power)

    return LambdaLR(optimizer, factor)
