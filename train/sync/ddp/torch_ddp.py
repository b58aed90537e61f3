"""The trainer's modes on torch's DistributedDataParallel, and the account of what they send.

DDP sends a bucket of gradients as soon as the backward pass has filled it: by itself (mode ddp), or
through the hook of a mode or a compressor. Hooks record in the ledger what they send. What DDP
sends by itself, and how long it took, is read from DDP's logging data after each step (reducer.py).
On GPUs this also applies to mode all_reduce, whose hook would add nothing there.

On a GPU this logging would wait for the device in every step, so DDP logs only some steps. There,
hooks record events in the stream when the first and the last bucket are ready, and `sync` records
another when all buckets have been averaged.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..base import GradSync, SyncOptions
from ..ranks import Ranks
from . import reducer
from .data_parallel import VIEWS, HookChoice, hook_of
from .hooks import BucketHook, marked

MS = 1e3


class DdpSync(GradSync):
    """The base of modes on DDP: the backward pass sends gradients, `sync` only counts them."""

    hook_class: type[BucketHook] | None = None

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(ranks, options)
        self.hook_choice = HookChoice.for_mode(self.hook_class, options)
        self._used: set[nn.Parameter] = set()  # parameters that got a gradient in this step
        self._mean: torch.cuda.Event | None = None  # when all buckets of this step were averaged

    def wrap(self, model: nn.Module) -> nn.Module:
        device = next(model.parameters()).device
        options = self.options_for(device)
        if device.type == "cuda":
            options["device_ids"] = [device]
        self.wrapped(wrapped := DistributedDataParallel(model, **options))
        return wrapped

    def options_for(self, device: torch.device) -> dict[str, Any]:
        """Return DDP's options for a model on `device`; drop the hook where DDP needs none."""
        self.hook_choice = self.hook_choice.for_device(device)
        return {**self.hook_choice.bucket_options(device), **VIEWS}

    def wrapped(self, model: DistributedDataParallel) -> None:
        """Called when DDP has made the replicas equal; from then on every step is timed."""
        self._ddp, params = model, list(model.parameters())
        # The trainer averages buffers in every mode. This attribute is in all versions of torch;
        # the argument `forward_sync_buffers` came with 2.13.
        model.broadcast_buffers = False
        for tensor in (*params, *model.buffers()):
            self.ranks.note("broadcast", tensor)
        if not params[0].is_cuda:
            reducer.log_each_step(model)
        self._hook = self.hook_choice.register(model, self.ranks.ledger)
        self._hook.is_timed = True
        # the parameters that DDP waits for in each backward pass
        self._params = [param for param in params if param.requires_grad]
        self._fix_buckets(model)
        for param in self._params:
            param.register_post_accumulate_grad_hook(self._reached)

    def _fix_buckets(self, model: DistributedDataParallel) -> None:
        """Have DDP fix its buckets now, from the last parameter to the first.

        A resumed run then has the same buckets, although its first backward pass is a later one.
        """
        if reducer.has_sparse_gradients(model):
            return
        fix_buckets(model, self._hook, self._params[::-1])
        for param in self._params if self.hook_choice.hook_class is None else ():
            self.ranks.note("all_reduce", param)

    def _reached(self, param: nn.Parameter) -> None:
        """Called when the backward pass has reached `param`, with or without a gradient."""
        if param.grad is not None:
            self._used.add(param)

    def backward(self, loss: Tensor) -> None:
        """Also reach the parameters that `loss` does not use, since DDP waits for each of them.

        DDP's `find_unused_parameters` would cost one more exchange between all ranks in every step.
        """
        reducer.reach(loss, self._params).backward()

    def used(self, model: nn.Module) -> list[bool]:
        return [param in self._used for param in self._params]

    def sync(self, model: nn.Module, used: Sequence[bool] = ()) -> None:
        # if a loop does not report which gradients the ranks used, zeros are kept
        for param, is_used in zip(self._params, used or [True] * len(self._params), strict=True):
            if not is_used:  # no rank has used it; DDP has made it zeros
                param.grad = None
        self._used.clear()
        if self._hook.ready:
            self._mean = marked()
        logged = reducer.logged(self._ddp)
        self._set_seconds(*reducer.logged_seconds(logged))
        if self.hook_choice.hook_class is None:
            for collective in reducer.collectives(self._ddp, logged):
                self.ranks.ledger.add(collective)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        return self._ddp.no_sync()

    def sync_seconds(self) -> Callable[[], tuple[float, float]]:
        mean, self._mean = self._mean, None
        if mean is None:
            return super().sync_seconds()
        first = self._hook.ready[0]
        last = self._hook.ready[-1]
        return lambda: (first.elapsed_time(mean) / MS, first.elapsed_time(last) / MS)

    def _set_seconds(self, comm_s: float, overlapped_s: float) -> None:
        self.comm_s = comm_s
        self.overlapped_s = overlapped_s

    def state(self) -> dict[str, Tensor]:
        return self._hook.state()

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        self._hook.restore(state)


def fix_buckets(
    model: DistributedDataParallel, hook: BucketHook | None, params: Sequence[nn.Parameter]
) -> None:
    """Have DDP fix its buckets for `params` in this order; `hook` sends nothing meanwhile."""
    if hook is not None:
        hook.sends = False
    reducer.cut_buckets(model, params)
    if hook is not None:
        hook.sends = True


def restore_bucket_order(model: DistributedDataParallel, order: Sequence[int]) -> None:
    """Give a new `model` the bucket order that `reducer.bucket_order` read in another process."""
    params = [param for param in model.module.parameters() if param.requires_grad]
    hook = hook_of(model)
    is_foreign = hook is None and bool(reducer.hooks_of(model))  # such a hook may count calls
    can_be_cut = reducer.can_cut_buckets(model) and not is_foreign
    if can_be_cut and sorted(order) == list(range(len(params))):
        fix_buckets(model, hook, [params[index] for index in order])
