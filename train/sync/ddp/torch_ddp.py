"""The trainer's modes on torch's DistributedDataParallel, and the account of what they send.

DDP sends a bucket of gradients as soon as the backward pass has filled it: by itself (mode ddp), or
through the hook of a mode or a compressor. Hooks enter what they send in the ledger. What DDP sends
by itself, and how long it took, is read from DDP's logging data after each step.

On a GPU that logging would wait for the device in every step. There, hooks record events in the
stream when the first and the last bucket were ready, and `sync` records one when all of them are
the mean.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..base import GradSync, SyncOptions
from ..ranks import Collective, Ranks
from .data_parallel import VIEWS, Way, hook_of
from .hooks import BucketHook, marked

NS, MS = 1e9, 1e3
TIMED = ("comm", "compute_comm_overlap")


class DdpSync(GradSync):
    """What the modes on DDP share: the backward pass sends the gradients, `sync` only accounts."""

    hook_class: type[BucketHook] | None = None

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(ranks, options)
        self.way = Way.of(self.hook_class, options)
        self._used: set[nn.Parameter] = set()  # that this step has given a gradient to
        self._mean: torch.cuda.Event | None = None  # when all buckets of this step were the mean

    def wrap(self, model: nn.Module) -> nn.Module:
        device = next(model.parameters()).device
        options: dict[str, Any] = {**self.way.buckets(device), **VIEWS}
        if device.type == "cuda":
            options["device_ids"] = [device]
        self.wrapped(wrapped := DistributedDataParallel(model, **options))
        return wrapped

    def wrapped(self, model: DistributedDataParallel) -> None:
        """Called when DDP has made the replicas equal; from now on it times every step."""
        self._ddp, params = model, list(model.parameters())
        # The trainer averages buffers in every mode. This name is in all versions of torch; the
        # argument `forward_sync_buffers` came with 2.13.
        model.broadcast_buffers = False
        for tensor in (*params, *model.buffers()):
            self.ranks.note("broadcast", tensor)
        if not params[0].is_cuda:
            model._set_ddp_runtime_logging_sample_rate(1)
        self._hook = self.way.register(model, self.ranks.ledger)
        # what it waits for in each backward pass
        self._params = [param for param in params if param.requires_grad]
        self._cut_buckets(model)
        for param in self._params:
            param.register_post_accumulate_grad_hook(self._came)

    def _cut_buckets(self, model: DistributedDataParallel) -> None:
        """Have DDP fix its buckets now, from the last parameter to the first.

        A resumed run, whose first backward pass is a later one, then has the same buckets.
        """
        if any(getattr(module, "sparse", False) for module in model.modules()):
            return  # DDP refuses a pass without the gradient of a sparse embedding
        cut_buckets(model, self._hook, self._params[::-1])
        for param in self._params if self.way.kind is None else ():
            self.ranks.note("all_reduce", param)

    def _came(self, param: nn.Parameter) -> None:
        """The backward pass has reached `param`, with or without a gradient."""
        if param.grad is not None:
            self._used.add(param)

    def backward(self, loss: Tensor) -> None:
        """Also reach the parameters that `loss` does not use, since DDP waits for each of them.

        DDP's `find_unused_parameters` would cost one more exchange between all ranks in every step.
        """
        frozen = [param for param in self._params if not param.requires_grad]  # since `wrapped`
        for param in frozen:
            param.requires_grad_()
        reaching = _Reaching.apply(loss, *self._params)
        for param in frozen:
            param.requires_grad = False
        reaching.backward()

    def used(self, model: nn.Module) -> list[bool]:
        return [param in self._used for param in self._params]

    def sync(self, model: nn.Module, used: Sequence[bool] = ()) -> None:
        # a loop that does not report which gradients the ranks used keeps the zeros
        for param, is_used in zip(self._params, used or [True] * len(self._params), strict=True):
            if not is_used:  # no rank has used it; DDP has made it zeros
                param.grad = None
        self._used.clear()
        if self._hook.ready:
            self._mean = marked()
        elif self._ddp.logger is not None and not next(model.parameters()).is_cuda:
            self._ddp.logger.set_runtime_stats_and_log()  # else it has the data of the step before
        logged = self._ddp._get_ddp_logging_data()
        self._took(*(logged.get(f"backward_{name}_time", 0) / NS for name in TIMED))
        if self.way.kind is None:
            for one in buckets_of(model, logged):
                self.ranks.ledger.add(one)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        return self._ddp.no_sync()

    def finished(self) -> None:
        if self._mean is not None:
            first, last = self._hook.ready[0], self._hook.ready[-1]
            self._took(first.elapsed_time(self._mean) / MS, first.elapsed_time(last) / MS)
            self._mean = None

    def _took(self, comm_s: float, overlapped_s: float) -> None:
        self.comm_s = comm_s
        self.overlapped_s = overlapped_s

    def state(self) -> dict[str, Tensor]:
        return self._hook.state()

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        self._hook.restore(state)


def cut_buckets(
    model: DistributedDataParallel, hook: BucketHook | None, params: Sequence[nn.Parameter]
) -> None:
    """Have DDP fix its buckets as if its first backward pass had reached `params` in this order.

    DDP rebuilds them after that pass. With other buckets, numbers are added up in another order.
    So this runs a backward pass without gradients, for which hooks send nothing, and DDP by itself
    sends zeros. No parameter may have a gradient yet.
    """
    if hook is not None:
        hook.sends = False
    model.reducer.prepare_for_backward([])
    for param in params:
        _Reaching.apply(torch.zeros((), device=param.device), param).backward()
    for param in params:
        param.grad = None
    if hook is not None:
        hook.sends = True


def bucket_order(model: DistributedDataParallel) -> list[int]:
    """The places of the parameters, in the order in which DDP's rebuilt buckets hold them.

    Empty if it has not rebuilt them, or never does. Collective after the first backward pass.
    """
    model.reducer._rebuild_buckets()  # as the next forward pass would
    if model.logger is None:
        return []
    model.logger.set_runtime_stats_and_log()
    places = model._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    return [int(place) for place in str(places).replace(",", " ").split()]


def restore_bucket_order(model: DistributedDataParallel, order: Sequence[int]) -> None:
    """Give a new `model` the buckets that `bucket_order` has found in another process.

    With `static_graph` it keeps its own: DDP rebuilds them only after a second pass that it counts.
    """
    params = [param for param in model.module.parameters() if param.requires_grad]
    hook = hook_of(model)
    is_foreign = hook is None and bool(model._comm_hooks)  # it may count its calls
    is_new = all(param.grad is None for param in params) and not bucket_order(model)
    can_be_cut = is_new and not is_foreign and not model.static_graph
    if can_be_cut and sorted(order) == list(range(len(params))):
        cut_buckets(model, hook, [params[place] for place in order])


def buckets_of(model: nn.Module, logged: Mapping[str, Any]) -> list[Collective]:
    """DDP's collectives for a step's gradients: one all_reduce per bucket."""
    param = next(param for param in model.parameters() if param.requires_grad)
    dtype = str(param.dtype).removeprefix("torch.")
    found = logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"]
    sizes = [int(size) for size in str(found).split(",")]  # bytes
    return [Collective("all_reduce", (size // param.itemsize,), dtype, size) for size in sizes]


class _Reaching(torch.autograd.Function):
    """The identity on a loss; its backward pass also reaches all of `params`, without a gradient.

    A parameter for which the pass has a gradient gets just that. For any other, the hooks that wait
    for it are called.
    """

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *params: Tensor) -> Tensor:
        ctx.count = len(params)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *of_loss: Tensor) -> tuple[Tensor | None, ...]:
        return *of_loss, *[None] * ctx.count
