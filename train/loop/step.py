"""One optimizer step: forward and backward over this rank's part, sync, clip, update.

With n_r of the M samples of the global batch on rank r of W, each micro-batch's mean loss is scaled
by (its samples) * W / M. The sum over this rank's micro-batches is then its part of the global
mean, times W. So the plain mean over ranks, which every sync mode computes, is the mean over all M
samples, for loss and gradient and for any split.

Collectives of a step, in this order on every rank: (1) the sum of the task's units, if it counts
units other than samples; (2) what the sync mode sends during the backward pass; (3) one float64 row
of each rank: [loss, norm, stop, save, busy, a mark for each buffer, which gradients it has, if the
mode needs it]; (4) what the mode's `sync` sends; (5) the mean of the buffers that some rank has
changed. All ranks decide from the same rows, after the same step, whether to stop or save. So a
signal that reaches one rank never separates the ranks.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from muster.errors import MusterError
from train.batches.plan import StepPlan
from train.checkpoints.manager import StepRequests
from train.loop.state import TrainingState
from train.program.recorder import exchanged, mean_loss, step_record
from train.records.schema import StepRecord
from train.records.timer import PhaseTimer
from train.sync import batchnorm
from train.sync.buffers import Buffers
from train.sync.ranks import Collective
from train.tasks.base import Batch, Task


class Step:
    """Runs one step after another; `wrapped` is the model in its sync mode's wrapper.

    Raises:
        MusterError: the loss or a gradient is no longer finite (on all ranks).
    """

    def __init__(
        self,
        task: Task,
        state: TrainingState,
        wrapped: nn.Module,
        max_grad_norm: float,
    ) -> None:
        self.task, self.model, self.state, self.max_grad_norm = task, wrapped, state, max_grad_norm
        self.grad_sync, self.ranks = state.grad_sync, state.grad_sync.ranks
        self.device = next(wrapped.parameters()).device
        self.buffers = Buffers(self.ranks, wrapped)
        self._autocast = state.precision.autocast()
        self.collectives: list[Collective] = []  # of the last step's gradients
        # found once, since walking through the modules of a BERT takes half a millisecond
        self._params = list(wrapped.parameters())
        self._batchnorms = batchnorm.synced_layers(wrapped)
        wrapped.train()

    def run(
        self, plan: StepPlan, batches: Iterator[Batch], requests_of: Callable[[int], Tensor]
    ) -> tuple[StepRecord, StepRequests]:
        """Run the step of `plan`; `requests_of(step)` is what this rank requests after it."""
        timer = PhaseTimer(self.device)
        if not self.state.model.training:  # an evaluation came before
            self.model.train()
        local_loss = torch.zeros((), dtype=torch.float64, device=self.device)
        with timer.phase("data"):
            loaded = [next(batches) for _ in plan.micro_batches]
        with timer.phase("sync"):
            weights = self._loss_weights(plan, loaded)
        for number, (micro, weight) in enumerate(zip(loaded, weights, strict=True), start=1):
            with timer.phase("data"):
                batch = to_device(micro, self.model, self.device)
            is_last = number == len(loaded)
            batchnorm.count_samples(self._batchnorms, plan.micro_batches[number - 1].samples > 0)
            with nullcontext() if is_last else self.grad_sync.no_sync(self.model):
                with timer.phase("forward"), self._autocast:
                    loss = (self.task.forward(self.model, batch).loss * weight).sum()
                with timer.phase("backward"):
                    self.grad_sync.backward(self.state.precision.scale(loss))
            local_loss += loss.detach()
        with timer.phase("optimizer"):
            # A mode that is not exact leaves gradients local, so each rank clips its own.
            is_exact = self.grad_sync.is_exact
            own_norm = torch.zeros(()) if is_exact else self._clip()
        with timer.phase("sync"):
            # One collective carries this rank's part of the loss, its gradient's norm if the norm
            # is local, its requests after this step, and the marks of its changed buffers.
            own_used = self.grad_sync.used(self.model)
            losses, norms, requests, marks, used = exchanged(
                self.ranks, local_loss, own_norm, requests_of(self.state.at.step + 1),
                self.buffers.marks(self.device), torch.tensor(own_used),
            )  # fmt: skip
            # a rank that has used all gradients need not wait for the device here
            self.grad_sync.sync(self.model, own_used if all(own_used) else used.any(0).tolist())
            self.buffers.average(plan.local_samples / plan.samples, marks)
        with timer.phase("optimizer"):
            if is_exact:
                norms[:] = self._clip()
            lr = float(self.state.schedule.get_last_lr()[0])
            self.state.precision.step(self.state.optimizer)
            self.state.precision.update()
            self.state.optimizer.zero_grad(set_to_none=True)
            self.state.schedule.step()
        with timer.phase("sync"):
            self.grad_sync.updated(self.model)
        rows = torch.cat([losses, norms, requests], dim=1).cpu()  # the host waits only here
        global_loss, grad_norm = self._read(rows[:, 0].tolist(), rows[:, 1].tolist())
        self.grad_sync.finished()
        seconds, at = timer.seconds, self.state.at
        waited_s = min(self.grad_sync.waited_s, seconds["backward"])
        at.step, at.in_epoch = at.step + 1, at.in_epoch + 1
        self.collectives = self.ranks.ledger.take_step()
        seconds |= {
            "backward": seconds["backward"] - waited_s,
            "sync": seconds["sync"] + waited_s,
            "step": timer.total_s(),
            "comm": self.grad_sync.comm_s,
            "overlapped": self.grad_sync.overlapped_s,
        }
        plan = replace(plan, step=at.step, epoch=at.epoch)
        record = step_record(
            self.ranks.rank, plan, self.collectives, seconds,
            loss=global_loss, lr=lr, grad_norm=grad_norm,
        )  # fmt: skip
        return record, StepRequests.of_any(rows[:, 2:])

    def _loss_weights(self, plan: StepPlan, loaded: Sequence[Batch]) -> Sequence[float | Tensor]:
        """A factor for each micro-batch's loss; with it the mean over ranks is the global mean.

        By samples, the plan has it. By the task's own units it is units * world_size / (units of
        the global batch); an all_reduce adds the units up.
        """
        counts = [self.task.units(batch) for batch in loaded]
        if counts[0] is None:
            return [micro.weight for micro in plan.micro_batches]
        counted = [  # the dummy batch of a rank without samples counts as zero
            torch.zeros_like(count) if micro.samples == 0 else count
            for count, micro in zip(counts, plan.micro_batches, strict=True)
            if count is not None
        ]
        local = torch.stack(counted).to(device=self.device, dtype=torch.float64)
        total = self.ranks.all_reduce(local.sum(0), dist.ReduceOp.SUM).clamp(min=1)
        return list(local * self.ranks.world_size / total)

    def _clip(self) -> Tensor:
        """Clip the gradients; return their norm before that."""
        self.state.precision.unscale_(self.state.optimizer)  # before the clipping
        return self.grad_sync.clip(self._params, self.max_grad_norm)

    def _read(self, losses: Sequence[float], norms: Sequence[float]) -> tuple[float, float]:
        """The loss, and this rank's norm, from the values of all ranks."""
        step = self.state.at.step + 1
        if broken := _not_finite(losses):
            ranks = ", ".join(map(str, broken))
            raise MusterError(
                f"step {step}: the loss on rank {ranks} is "
                f"{losses[broken[0]]}, not a number to learn from; try a lower --lr than "
                f"{self.state.schedule.base_lrs[0]}, or --precision fp32"
            )
        broken = _not_finite(norms)
        if broken and not self.state.precision.can_overflow:
            ranks = ", ".join(map(str, broken))
            raise MusterError(
                f"step {step}: the gradient's norm is {norms[broken[0]]} on "
                f"{'every rank' if self.grad_sync.is_exact else f'rank {ranks}'}; "
                f"try a lower --lr than {self.state.schedule.base_lrs[0]}"
            )
        return mean_loss(losses), norms[self.ranks.rank]


def _not_finite(numbers: Sequence[float]) -> list[int]:
    return [rank for rank, number in enumerate(numbers) if not math.isfinite(number)]


def to_device(batch: Batch, model: nn.Module, device: torch.device) -> Batch:
    """`batch` on the device of `model`, with floats in the model's precision."""
    dtype = next(param.dtype for param in model.parameters() if param.is_floating_point())
    return {
        name: tensor.to(
            device=device,
            dtype=dtype if tensor.is_floating_point() else None,
            non_blocking=True,
        )
        for name, tensor in batch.items()
    }
