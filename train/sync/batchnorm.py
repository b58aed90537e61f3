"""BatchNorm over the global batch: the statistics and gradients equal those of a single process.

Forward: each rank computes the mean and the squared deviations of its own part, with their count: a
row of 2 * channels + 1 numbers. One all_gather gives every rank all rows. Each rank merges them in
rank order into the statistics of the whole batch, so all ranks have the same bits.
Backward: the formula needs two sums over samples, of the gradient and of the gradient times the
normalised value. One all_reduce of (2, channels) adds them up. Everything that is exchanged is in
float64.

torch's SyncBatchNorm does not accept the CPU, and counts every rank's samples. Here each rank
declares whether its samples count, so a rank without samples changes nothing. It still takes part
in every collective; otherwise the other ranks would wait for it.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from .ranks import Ranks, waits

REPLACED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Statistics(NamedTuple):
    """Statistics of each channel over all counted samples: float64, the same bits on every rank."""

    mean: Tensor  # (channels,)
    var: Tensor  # (channels,), biased
    size: Tensor  # scalar: values per channel


class HeldGroup:
    """A process group that copies share; after unpickling, it stands for the default group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.found = group

    def __deepcopy__(self, memo: object) -> "HeldGroup":
        return self

    def __reduce__(self) -> tuple[type["HeldGroup"], tuple[()]]:
        return HeldGroup, ()


class SyncedBatchNorm(_BatchNorm):
    """nn.BatchNorm1d, 2d and 3d over the samples of all ranks of `group`.

    All ranks must run it the same number of times. In eval mode it does not communicate. A channel
    with only one value in the global batch has variance 0; torch would raise an error.
    """

    group: HeldGroup
    counts = True  # whether the next batch counts; see `count_samples`

    def forward(self, values: Tensor) -> Tensor:
        """Normalise (n, channels, ...); the result has the same shape and dtype."""
        if not self.training:
            return functional.batch_norm(
                values, self.running_mean, self.running_var, self.weight, self.bias,
                training=self.running_mean is None, eps=self.eps,
            )  # fmt: skip
        group = self.group.found
        ranks = Ranks(world_size=dist.get_world_size(group), group=group)
        seen = merge(ranks.all_gather(local_statistics(values.detach(), self.counts)))
        self._track(seen)
        normalised: Tensor = _Normalise.apply(
            values, self.weight, self.bias, seen, self.eps, self.counts, group
        )
        return normalised

    @torch.no_grad()
    def _track(self, seen: Statistics) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += seen.size > 0  # a batch of only dummies changes nothing
        share = (seen.size > 0).double()
        if self.momentum is None:  # None means the plain mean over all batches
            share /= self.num_batches_tracked.clamp(min=1)
        else:
            share *= self.momentum
        unbiased = seen.var * seen.size / (seen.size - 1).clamp(min=1)
        for running, new in ((self.running_mean, seen.mean), (self.running_var, unbiased)):
            running.lerp_(new.to(running), share.to(running))


def convert(model: nn.Module, timeout_s: float, ranks: Ranks | None = None) -> nn.Module:
    """Make the BatchNorm layers of `model` work over all ranks; collective if it has any.

    The layers get their own process group, because DDP reduces a bucket as soon as its gradients
    are ready. On ranks that use different parameters, that may be before or after a layer's own
    collectives, but within one group the order must be the same on all ranks.
    """
    # A subclass may do more than normalise, so only these exact classes are converted.
    layers: list[Any] = [module for module in model.modules() if type(module) in REPLACED]
    if layers:
        group = HeldGroup((ranks or Ranks()).own_group(timeout_s))
        for layer in layers:  # the new layer shares its weights, statistics and hooks
            layer.__class__ = SyncedBatchNorm
            layer.group = group
    return model


def synced_layers(model: nn.Module) -> list[SyncedBatchNorm]:
    """The layers of `model` that work over all ranks."""
    return [module for module in model.modules() if isinstance(module, SyncedBatchNorm)]


def count_samples(layers: Iterable[SyncedBatchNorm], counts: bool) -> None:
    """Set whether the samples that `layers` see from now on count in their statistics."""
    for layer in layers:
        layer.counts = counts


def local_statistics(values: Tensor, counts: bool) -> Tensor:
    """This rank's means, squared deviations and count: float64 (2 * channels + 1,)."""
    exact = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    count = values.numel() // values.shape[1]
    if not count or not counts:
        return values.new_zeros(2 * values.shape[1] + 1, dtype=torch.float64)
    # This is four times as fast as var_mean over all dimensions but one, and updates nothing here.
    mean, var = torch.batch_norm_update_stats(exact, None, None, 0.0)
    # filled rather than copied: a copy would make the host wait for a GPU, in each layer
    counted = mean.new_full((1,), count, dtype=torch.float64)
    return torch.cat([mean.double(), var.double() * count, counted])


def merge(rows: Tensor) -> Statistics:
    """Merge the statistics of several sets of samples into one (Chan, Golub and LeVeque, 1979).

    Deviations are relative to the means: E[x^2] - E[x]^2 would lose all digits if the mean were far
    from zero.
    """
    means, deviations = rows[:, :-1].chunk(2, dim=1)
    counts = rows[:, -1:]
    count = counts.sum()
    some = count.clamp(min=1)
    mean = (counts * means).sum(0) / some
    var = (deviations + counts * (means - mean).square()).sum(0) / some
    # All samples are dummies: any finite value will do, since their loss is multiplied by zero.
    return Statistics(mean, torch.where(count > 0, var, 1.0), count)


class _Normalise(torch.autograd.Function):
    """(values - mean) / sqrt(var + eps) * weight + bias, where mean and var depend on `values`.

    On each rank the incoming gradient is that of T, the sum of all ranks' losses. The gradient of
    `values` is also that of T, since a value also changes the other ranks' outputs. Weight and bias
    get this rank's share of it. The average over ranks then makes both the gradient of T /
    world_size, which is the mean loss over the global batch, as the trainer has scaled it.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        values, weight, bias, seen, ctx.eps, ctx.counts, ctx.group = given
        exact = torch.float64 if values.dtype == torch.float64 else torch.float32
        mean, var = seen.mean.to(exact), seen.var.to(exact)
        ctx.save_for_backward(values, weight, mean, var, seen.size)
        return functional.batch_norm(values, mean, var, weight, bias, training=False, eps=ctx.eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, weight, mean, var, size = ctx.saved_tensors
        # As if mean and var were constants: the gradient of `values`, and this rank's sums of grad
        # * normalised and of grad, which are the gradients of weight and bias.
        if values.numel():
            grad_values, *sums = torch.ops.aten.native_batch_norm_backward(
                grad, values, weight, mean, var, None, None, False, ctx.eps, [True] * 3
            )
        else:  # torch's kernel would divide by zero samples and kill the process
            zeros = torch.zeros_like(mean if weight is None else weight)
            grad_values, sums = torch.zeros_like(values), [zeros, zeros.clone()]
        if ctx.needs_input_grad[0]:
            means = torch.zeros(2, len(mean), dtype=torch.float64, device=mean.device)
            if ctx.counts:
                means.copy_(torch.stack(sums))
            waits.during(dist.all_reduce, means, group=ctx.group)
            scale = (var + ctx.eps).rsqrt() * (1.0 if weight is None else weight)
            of_normed, of_grad = (means / size.clamp(min=1)).to(scale) * scale
            if ctx.counts and values.numel():  # the gradient through mean and var
                grad_values -= functional.batch_norm(
                    values, mean, var, of_normed, of_grad, training=False, eps=ctx.eps
                )
            else:  # neither the statistics nor a loss depend on these values
                grad_values.zero_()
        grad_weight, grad_bias = sums if weight is not None else (None, None)
        return grad_values, grad_weight, grad_bias, None, None, None, None


def has_any(model: nn.Module) -> bool:
    """Whether `model` has a BatchNorm, synchronised or not."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())
