"""The trainer's modes on torch's DistributedDataParallel, and account of what it sends.

DDP sends a bucket of gradients as soon as the backward pass has filled it: by itself (mode ddp), or
through a hook, of a mode or a compressor. What hooks send is in the ledger already; what DDP sends
by itself, and how long it took, is read from its own logging data after each step.

On a GPU that logging would wait for the device in every step. There hooks mark in the stream when
the first and the last bucket were ready, and `sync` when all of them are the mean.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..base import GradSync, SyncOptions
from ..ranks import Collective, Ranks
from .data_parallel import SyncedDataParallel, Way
from .hooks import BucketHook, marked

NS, MS = 1e9, 1e3
TIMED = ("comm", "compute_comm_overlap")
# By itself and through Accelerate. Both also leave buffers alone: the trainer averages them, in
# every mode alike.
DDP_OPTIONS = {
    "find_unused_parameters": True,  # what some rank did not use must not hang it
    "gradient_as_bucket_view": True,  # no copy between bucket and gradient
}


class DdpSync(GradSync):
    """What the modes on DDP share: the backward pass sends the gradients, `sync` only counts."""

    hook_class: type[BucketHook] | None = None

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(ranks, options)
        self.way = Way.of(self.hook_class, options)
        self._hook: BucketHook | None = None
        self._buckets = list[Collective]()  # of DDP's own, in each step the same
        self._mean: torch.cuda.Event | None = None  # all buckets of this step are

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.ranks.world_size == 1:
            return model
        device = next(model.parameters()).device
        device_ids = [device] if device.type == "cuda" else None
        wrapped = self.way.wrap(
            model, self.ranks.ledger,
            device_ids=device_ids, forward_sync_buffers=False, **DDP_OPTIONS,
        )  # fmt: skip
        self.wrapped(wrapped)
        return wrapped

    def wrapped(self, model: DistributedDataParallel) -> None:
        """DDP has made the replicas equal; from now on it times every step."""
        params = list(model.parameters())
        for tensor in (*params, *model.buffers()):
            self.ranks.note("broadcast", tensor)
        # What DDP tells in each step: which parameters this rank has used at all.
        self._flags = torch.empty(sum(one.requires_grad for one in params), dtype=torch.int32)
        _let_it_warn(params[0].device)
        if not params[0].is_cuda:
            model._set_ddp_runtime_logging_sample_rate(1)
        if isinstance(model, SyncedDataParallel):
            self._hook = model.hook
        elif self.way.kind is not None:
            self._hook = self.way.register(model, self.ranks.ledger)

    def sync(self, model: nn.Module, used: Sequence[bool] = ()) -> None:
        if not isinstance(model, DistributedDataParallel):
            return
        self.ranks.note("all_reduce", self._flags)
        if self._hook is not None and self._hook.ready:
            self._mean = marked()
        elif model.logger is not None and not next(model.parameters()).is_cuda:
            model.logger.set_runtime_stats_and_log()  # else it knows of the step before only
        logged = model._get_ddp_logging_data()
        self._took(*(logged.get(f"backward_{name}_time", 0) / NS for name in TIMED))
        if self._hook is None:
            self._buckets = self._buckets or buckets_of(model, logged)
            for one in self._buckets:
                self.ranks.ledger.add(one)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    def finished(self) -> None:
        if self._mean is not None and self._hook is not None:
            first, last = self._hook.ready[0], self._hook.ready[-1]
            self._took(first.elapsed_time(self._mean) / MS, first.elapsed_time(last) / MS)
            self._mean = None

    def _took(self, comm_s: float, overlapped_s: float) -> None:
        """A mode of ours tells what was waited for apart from the backward pass."""
        self.comm_s, self.overlapped_s = comm_s, overlapped_s
        if self.hook_class is not None:
            self.comm_s, self.waited_s = overlapped_s, max(0.0, comm_s - overlapped_s)

    def state(self) -> dict[str, Tensor]:
        return {} if self._hook is None else self._hook.state()

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        if self._hook is not None:
            self._hook.restore(state)


def buckets_of(model: nn.Module, logged: Mapping[str, Any]) -> list[Collective]:
    """What DDP makes of a step's gradients: an all_reduce per bucket."""
    param = next(param for param in model.parameters() if param.requires_grad)
    dtype = str(param.dtype).removeprefix("torch.")
    sizes = [int(size) for size in str(logged["bucket_sizes"]).split(",")]  # bytes
    return [Collective("all_reduce", (size // param.itemsize,), dtype, size) for size in sizes]


def sent_by(model: nn.Module) -> list[Collective]:
    """The collectives on gradients of the last pass of what `muster.sync` returned."""
    if isinstance(model, SyncedDataParallel):
        return model.hook.ranks.ledger.take_step()
    if isinstance(model, DistributedDataParallel) and model.process_group.size() > 1:
        return buckets_of(model, model._get_ddp_logging_data())
    return []


def _let_it_warn(device: torch.device) -> None:
    """Take a warning that torch's C++ gives once in a process, here, where it can be left out.

    DDP says that --sync ddp looks for unused parameters in a model that has none; but another step
    may have some. Collective: DDP makes the replicas of its model equal.
    """

    def once(_: float) -> float:
        model = DistributedDataParallel(nn.Linear(1, 1).to(device), find_unused_parameters=True)
        model(torch.ones(1, 1, device=device))
        return 0.0

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "find_unused_parameters=True was specified", UserWarning)
        torch.zeros(1).apply_(once)  # what C++ warns of in here is Python's, no line on stderr
