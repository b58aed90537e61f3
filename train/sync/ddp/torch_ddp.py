"""The trainer's modes on torch's DistributedDataParallel, and account of what it sends.

DDP sends a bucket of gradients as soon as the backward pass has filled it: by itself (mode ddp), or
through a hook, of a mode or a compressor. What hooks send is in the ledger already; what DDP sends
by itself, and how long it took, is read from its own logging data after each step.

On a GPU that logging would wait for the device in every step. There hooks mark in the stream when
the first and the last bucket were ready.
"""

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ..base import GradSync, SyncOptions
from ..ledger import Collective
from ..ranks import Ranks
from .data_parallel import SyncedDataParallel, hook_class, in_ddp, register
from .hooks import BucketHook

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
        self._hook: BucketHook | None = None
        self._buckets = list[Collective]()  # of DDP's own, in each step the same
        self._is_timed_here = False  # by events in the device's stream
        # Of this step: the first bucket was ready, the last was, all of them are the mean.
        self._events = list[torch.cuda.Event]()

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.ranks.world_size == 1:
            return model
        device = next(model.parameters()).device
        device_ids = [device] if device.type == "cuda" else None
        ddp = {**DDP_OPTIONS, "device_ids": device_ids, "forward_sync_buffers": False}
        wrapped = in_ddp(model, self.kind(device), self.ranks, self.options, ddp)
        self.wrapped(wrapped)
        return wrapped

    def wrapped(self, model: DistributedDataParallel) -> None:
        """DDP has made the replicas equal; from now on it times every step."""
        tensors = [*model.parameters(), *model.buffers()]
        self.ranks.ledger.control["broadcast"] += sum(tensor.nbytes for tensor in tensors)
        trained = sum(param.requires_grad for param in model.parameters())
        self._flags_bytes = trained * torch.int32.itemsize  # which parameters were used at all
        device = tensors[0].device
        _let_it_warn(device)
        self._is_timed_here = device.type == "cuda"
        if not self._is_timed_here:
            model._set_ddp_runtime_logging_sample_rate(1)
        if isinstance(model, SyncedDataParallel):
            self._hook = model.hook
        elif (kind := self.kind(device)) is not None:
            self._hook = register(model, kind, self.ranks, self.options)

    def kind(self, device: torch.device) -> type[BucketHook] | None:
        """The hook's; it also marks when a bucket is ready, where DDP does not time it."""
        kind = hook_class(type(self).hook_class, self.options)
        if kind is None or device.type != "cuda":
            return kind
        mode = self

        class Marking(kind):  # type: ignore[valid-type, misc]
            def average(self, state: object, bucket: dist.GradBucket) -> Future[Tensor]:
                mode._events = [*mode._events[:1], _event()]
                sent: Future[Tensor] = super().average(state, bucket)
                return sent

        return Marking

    def sync(self, model: nn.Module) -> None:
        if not isinstance(model, DistributedDataParallel):
            return
        self.ranks.ledger.control["all_reduce"] += self._flags_bytes
        if self._is_timed_here:
            if self._events:
                self._events.append(_event())
        else:
            assert model.logger is not None
            model.logger.set_runtime_stats_and_log()  # else it knows of the step before only
        logged = model._get_ddp_logging_data()
        comm, overlapped = (logged.get(f"backward_{name}_time", 0) for name in TIMED)
        self._took(comm / NS, overlapped / NS)
        if self._hook is None:
            self._buckets = self._buckets or buckets_of(model, logged)
            for one in self._buckets:
                self.ranks.ledger.add(one)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        if isinstance(model, DistributedDataParallel):
            return model.no_sync()
        return super().no_sync(model)

    def finished(self) -> None:
        if len(self._events) > 1:
            first, *ready, mean = self._events
            overlapped_s = first.elapsed_time(ready[-1]) / MS if ready else 0.0
            self._took(first.elapsed_time(mean) / MS, overlapped_s)
        self._events.clear()

    def _took(self, comm_s: float, overlapped_s: float) -> None:
        """A mode of ours tells what was waited for apart from the backward pass."""
        self.comm_s, self.overlapped_s = comm_s, overlapped_s
        if type(self).hook_class is not None:
            self.comm_s, self.waited_s = overlapped_s, max(0.0, comm_s - overlapped_s)

    def state(self) -> dict[str, Tensor]:
        return {} if self._hook is None else self._hook.state()

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        if self._hook is not None:
            self._hook.restore(state)


def _event() -> torch.cuda.Event:
    """A mark in the current stream, which nothing waits for."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def buckets_of(model: nn.Module, logged: Mapping[str, Any]) -> list[Collective]:
    """What DDP makes of a step's gradients: an all_reduce per bucket."""
    param = next(param for param in model.parameters() if param.requires_grad)
    dtype = str(param.dtype).removeprefix("torch.")
    sizes = [int(size) for size in str(logged["bucket_sizes"]).split(",")]  # bytes
    return [Collective("all_reduce", (size // param.itemsize,), dtype, size) for size in sizes]


def sent_by(model: nn.Module) -> list[Collective]:
    """The collectives on gradients of the last pass of what `muster.sync` returned."""
    if isinstance(model, SyncedDataParallel) and model.hook is not None:
        return model.hook.ranks.ledger.take_step()
    if isinstance(model, DistributedDataParallel) and model.process_group.size() > 1:
        return buckets_of(model, model._get_ddp_logging_data())
    return []


def _let_it_warn(device: torch.device) -> None:
    """Take a warning that torch's C++ gives once in a process, here, where it can be left out.

    DDP says that --sync ddp looks for unused parameters in a model that has none; but another step
    may have some. Collective: DDP makes the replicas of its model equal.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "find_unused_parameters=True was specified", UserWarning)
        _InPython.apply(torch.ones(1, 1, device=device))


class _InPython(torch.autograd.Function):
    """What C++ warns of in here is a warning of Python's, not a line on stderr."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        with torch.enable_grad():
            model = nn.Linear(1, 1).to(values.device)
            DistributedDataParallel(model, find_unused_parameters=True)(values)
        return values
