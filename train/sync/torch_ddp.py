"""torch's DistributedDataParallel: how it is set up, what it sends by itself, and account of that.

DDP all-reduces a bucket of gradients as soon as the backward pass has filled it. With `compress`,
it calls a hook instead, which has the compressor of that name send the bucket. What hooks send is
in the ledger already; what DDP sends by itself is read from its own logging data after each step.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .base import MIB, GradSync, SyncOptions
from .compression.base import all_reduced, load
from .ledger import Collective
from .ranks import Ranks

NS = 1e9


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

    def wrapped(self, model: DistributedDataParallel) -> None:
        """DDP has made the replicas equal; from now on it times every step."""
        model._set_ddp_runtime_logging_sample_rate(1)
        tensors = [*model.parameters(), *model.buffers()]
        self.ranks.ledger.control["broadcast"] += sum(tensor.nbytes for tensor in tensors)
        trained = sum(param.requires_grad for param in model.parameters())
        self._flags_bytes = trained * torch.int32.itemsize  # which parameters were used at all
        _let_it_warn(tensors[0].device)
        compressor = self._compressor
        if compressor is not None:
            # Called by a function of ours: by its name torch refuses bf16_compress_hook where
            # there is no NCCL, though gloo adds bfloat16 as well.
            model.register_comm_hook(None, lambda _, bucket: compressor.hook(bucket))

    def sync(self, model: nn.Module) -> None:
        if not isinstance(model, DistributedDataParallel):
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
        self.ranks.ledger.control["all_reduce"] += self._flags_bytes

    def state(self) -> dict[str, Tensor]:
        return {} if self._compressor is None else self._compressor.state()

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        if self._compressor is not None:
            self._compressor.restore(state, next(model.parameters()).device)


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
