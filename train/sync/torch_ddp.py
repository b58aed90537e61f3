"""torch's DistributedDataParallel: how it is set up, what it sends by itself, and account of that.

DDP all-reduces a bucket of gradients as soon as the backward pass has filled it. With `compress`,
it calls a hook instead, which has the compressor of that name send the bucket. What hooks send is
in the ledger already; what DDP sends by itself is read from its own logging data after each step.

On a GPU that logging would wait for the device in every step. There a hook of ours sends the
buckets, notes them, and marks in the stream when the first and the last of them were ready.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from .base import MIB, GradSync, SyncOptions
from .compression.base import all_reduced, load
from .ledger import Collective
from .ranks import Ranks

NS, MS = 1e9, 1e3


def ddp_options(options: SyncOptions) -> dict[str, Any]:
    """How torch's DDP is set up, by itself and through Accelerate.

    Both also leave buffers alone: the trainer averages them, in every mode alike.
    """
    return {
        "bucket_cap_mb": max(options.fixed_mb, 1 / MIB),  # one byte: one bucket per parameter
        "find_unused_parameters": True,  # a parameter that some rank did not use must not hang it
        "gradient_as_bucket_view": True,  # no copy between bucket and gradient
    }


class DdpSync(GradSync):
    """What the modes on DDP share: the backward pass sends the gradients, `sync` only counts."""

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(ranks, options)
        self._compressor = load(ranks, options)
        self._buckets = list[Collective]()  # of DDP's own, in each step the same
        self._is_timed_here = False  # by events in the device's stream
        # Of this step: the first bucket was ready, the last was, all of them are the mean.
        self._events = list[torch.cuda.Event]()

    def wrapped(self, model: DistributedDataParallel) -> None:
        """DDP has made the replicas equal; from now on it times every step."""
        tensors = [*model.parameters(), *model.buffers()]
        self.ranks.ledger.control["broadcast"] += sum(tensor.nbytes for tensor in tensors)
        trained = sum(param.requires_grad for param in model.parameters())
        self._flags_bytes = trained * torch.int32.itemsize  # which parameters were used at all
        _let_it_warn(tensors[0].device)
        self._is_timed_here = _has_events(tensors[0].device)
        if not self._is_timed_here:
            model._set_ddp_runtime_logging_sample_rate(1)
        if self._compressor is not None or self._is_timed_here:
            # A function of ours: by its name torch refuses bf16_compress_hook where there is no
            # NCCL, though gloo adds bfloat16 as well.
            model.register_comm_hook(None, lambda _, bucket: self._send(bucket))

    def _send(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Begin to make a full bucket the mean over ranks."""
        if self._is_timed_here:
            self._events = [*self._events[:1], _event()]
        if self._compressor is not None:
            return self._compressor.hook(bucket)
        gradients = bucket.buffer()
        self.note("all_reduce", gradients)
        work = dist.all_reduce(gradients, dist.ReduceOp.AVG, async_op=True)
        assert work is not None
        mean: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return mean

    def sync(self, model: nn.Module) -> None:
        if not isinstance(model, DistributedDataParallel):
            return
        self.ranks.ledger.control["all_reduce"] += self._flags_bytes
        if self._is_timed_here:
            self._events.append(_event())
            return
        assert model.logger is not None
        model.logger.set_runtime_stats_and_log()  # else it knows of the step before only
        logged = model._get_ddp_logging_data()
        self.comm_s = logged.get("backward_comm_time", 0) / NS
        self.overlapped_s = logged.get("backward_compute_comm_overlap_time", 0) / NS
        if self._compressor is None:
            self._buckets = self._buckets or _buckets_of(model, logged)
            for one in self._buckets:
                self.ranks.ledger.add(one)

    def finished(self) -> None:
        if len(self._events) > 1:
            first, *ready, mean = self._events
            self.comm_s = first.elapsed_time(mean) / MS
            self.overlapped_s = first.elapsed_time(ready[-1]) / MS if ready else 0.0
        self._events.clear()

    def state(self) -> dict[str, Tensor]:
        return {} if self._compressor is None else self._compressor.state()

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        if self._compressor is not None:
            self._compressor.restore(state, next(model.parameters()).device)


def _has_events(device: torch.device) -> bool:
    return device.type == "cuda"


def _event() -> torch.cuda.Event:
    """A mark in the current stream, which nothing waits for."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _buckets_of(model: nn.Module, logged: Mapping[str, Any]) -> list[Collective]:
    """What DDP makes of a step's gradients: an all_reduce per bucket."""
    param = next(param for param in model.parameters() if param.requires_grad)
    sizes = str(logged["bucket_sizes"]).split(",")  # bytes
    return [all_reduced(int(size) // param.itemsize, param.dtype) for size in sizes]


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
