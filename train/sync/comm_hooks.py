"""DDP sends less than its buckets: torch's own communication hooks, with account and memory."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.distributed_c10d import _get_default_group
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from configs.settings.train import TrainConfig
from train.records.ledger import Collective
from train.sync.base import DdpAccount, GradSync

CASTS = {
    "fp16": (fp16_compress_hook, torch.float16),
    "bf16": (bf16_compress_hook, torch.bfloat16),
}
FIRST = 2  # step, from 0, that PowerSGD may compress: torch wants the first two exact
MEMORIES = ("error", "p", "q")  # of torch's PowerSGD, each by the number of a bucket
STEP = "powersgd/step"


class HookAccount(DdpAccount):
    """Has DDP compress its buckets as --compress says, and keeps account of what it sends."""

    def __init__(self, grad_sync: GradSync, config: TrainConfig) -> None:
        super().__init__(grad_sync)
        self._config = config
        self._sent: list[Collective] = []  # in this step's backward pass
        self._power: PowerSGDState | None = None
        if config.compress == "powersgd":
            self._power = PowerSGDState(
                None, matrix_approximation_rank=config.compress_rank, start_powerSGD_iter=FIRST
            )

    def wrapped(self, model: DistributedDataParallel) -> None:
        super().wrapped(model)
        _let_it_warn(next(model.parameters()).device)
        if self._config.compress == "none":
            return
        hook = self._cast if self._power is None else self._power_sgd
        model.register_comm_hook(None, lambda _, bucket: hook(bucket))

    def collectives(
        self, model: DistributedDataParallel, logged: Mapping[str, Any]
    ) -> Sequence[Collective]:
        if self._config.compress == "none":
            return super().collectives(model, logged)
        sent, self._sent = self._sent, []
        return sent

    # Called by a function of ours: by its name torch refuses bf16_compress_hook where there is no
    # NCCL, though gloo adds bfloat16 as well.
    def _cast(self, bucket: dist.GradBucket) -> Future[Tensor]:
        hook, dtype = CASTS[self._config.compress]
        self._note(bucket.buffer().numel(), dtype)
        return hook(_get_default_group(), bucket)

    def _power_sgd(self, bucket: dist.GradBucket) -> Future[Tensor]:
        state, index, buffer = self._power, bucket.index(), bucket.buffer()
        assert state is not None
        error = state.error_dict.get(index)
        if error is not None and error.shape != buffer.shape:  # of a run with other buckets
            for memory in self._memories(state).values():
                memory.pop(index, None)
        compresses = state.iter >= state.start_powerSGD_iter
        before = state.total_numel_after_compression
        future = powerSGD_hook(state, bucket)
        # Its collectives follow each other in gloo's threads: those of the next bucket would come
        # between them, on each rank at another place.
        future.wait()
        if not compresses:
            self._note(buffer.numel(), buffer.dtype)
            return future
        factors = [state.p_memory_dict[index].numel(), state.q_memory_dict[index].numel()]
        sent = state.total_numel_after_compression - before
        for numel in (sent - sum(factors), *factors):
            self._note(numel, buffer.dtype)
        return future

    def _note(self, numel: int, dtype: torch.dtype) -> None:
        name = str(dtype).removeprefix("torch.")
        self._sent.append(Collective("all_reduce", (numel,), name, numel * dtype.itemsize))

    def state(self) -> dict[str, Tensor]:
        """What PowerSGD remembers on this rank, by name."""
        if self._power is None or self._power.iter < FIRST:
            return {}
        tensors = {
            f"powersgd/{what}/{index}": tensor
            for what, memory in self._memories(self._power).items()
            for index, tensor in memory.items()
        }
        return {**tensors, STEP: torch.tensor([float(self._power.iter)])}

    def restore(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Go on from what `state` returned; where a rank's own part is missing, from nothing."""
        if self._power is None or "powersgd/error/0" not in state or STEP not in state:
            return
        self._power.iter = int(state[STEP].item())
        for what, memory in self._memories(self._power).items():
            prefix = f"powersgd/{what}/"
            memory.update(
                (int(name.removeprefix(prefix)), tensor.to(device, copy=True))
                for name, tensor in state.items()
                if name.startswith(prefix)
            )

    @staticmethod
    def _memories(state: PowerSGDState) -> dict[str, dict[int, Tensor]]:
        memories = (state.error_dict, state.p_memory_dict, state.q_memory_dict)
        return dict(zip(MEMORIES, memories, strict=True))


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
