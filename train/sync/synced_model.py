"""A model whose gradients are the mean over ranks after each backward pass, in anyone's loop.

How it works: `forward` puts a hook on its outputs. When the backward pass reaches one of them, the
hook asks the engine to call back at the end of that pass, and there the sync mode completes what
it has begun to send while gradients were computed. The outputs belong to the outermost pass: a
reentrant checkpoint has passes of its own, which end too early.

A pass that is repeated (retain_graph) or that adds to gradients that are the mean already is
synchronised again, and rightly so: the mean of a mean and of something local is the mean of both.
"""

import atexit
import hashlib
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from muster.errors import UsageError

from . import base, batchnorm
from .base import GradSync, SyncOptions
from .buffers import Buffers
from .ledger import Collective
from .ranks import Ranks, current_ranks

MODES = ("all_reduce", "ddp", "gather_scatter", "single")
PREFIX = "module."


def sync(
    model: nn.Module,
    mode: str = "all_reduce",
    *,
    compress: str = "none",
    compress_rank: int = 4,
    compress_share: float = 0.01,
    bucket_mb: float | Literal["auto"] | None = None,
    overlap: bool = True,
    levels: Literal["auto", 1, 2] = "auto",
    sparse_rows: bool = True,
    synced_batchnorm: bool = False,
    ddp_prefix: bool = False,
    timeout_s: float = 1800.0,
) -> "SyncedModel":
    """`model`, to be used where `DistributedDataParallel(model)` was; all ranks call this alike.

    After `loss.backward()` each `.grad` is the mean over ranks, the same bits on every rank. All
    else of a script stays: `no_sync()`, clipping, schedules, GradScaler, optimizers. The process
    group must exist already; without one, and with one process, there is nothing to synchronise.

    Args:
        model: on its device. Its parameters and buffers become those of rank 0. It is changed:
            hooks stay on its parameters.
        mode: "all_reduce", "ddp" (torch's own engine), "gather_scatter" or "single".
        compress: "none", "bf16", "fp16", "int8", "powersgd" or "topk": fewer bytes, and gradients
            that are about the mean.
        compress_rank: of PowerSGD's matrices.
        compress_share: of the gradients' values, that topk sends.
        bucket_mb: MiB of gradients per collective; None is the mode's own, "auto" tries sizes.
        overlap: send gradients while others are computed.
        levels: of all_reduce: 2 sums inside each node first; "auto" takes the faster.
        sparse_rows: of large embeddings send only the rows that some rank has used.
        synced_batchnorm: BatchNorm layers see the samples of all ranks, also of unequal parts.
        ddp_prefix: names in `state_dict()` begin with "module.", as those of torch's DDP do.
            Either form is loaded.
        timeout_s: how long a rank may come late to a collective of the mode's own groups.

    Raises:
        UsageError: an option that does not fit, no process group where there are several ranks, or
            a model that is not the same on every rank.
    """
    ranks = current_ranks()
    if mode not in MODES:
        raise UsageError(f"muster.sync: unknown mode {mode!r}; known: {', '.join(MODES)}")
    if mode == "single" and ranks.world_size > 1:
        raise UsageError(
            f"muster.sync: mode 'single' is for one process, but world_size is {ranks.world_size}"
        )
    if not any(param.requires_grad for param in model.parameters()):
        raise UsageError("muster.sync: the model has no parameter that requires a gradient")
    _require_the_same(model, ranks)
    options = SyncOptions(
        bucket_mb=bucket_mb, overlap=overlap, levels=levels, sparse_rows=sparse_rows,
        compress=compress,
        compress_rank=compress_rank, compress_share=compress_share, timeout_s=timeout_s,
    )  # fmt: skip
    if synced_batchnorm and ranks.world_size > 1:
        model = batchnorm.convert(model, timeout_s)
    return SyncedModel(model, base.build(mode, ranks, options), ddp_prefix=ddp_prefix)


@dataclass
class Measured:
    """What a model has spent and sent since this was begun; seconds by this process's clock."""

    began: float | None = None  # when it was first called
    forward_s: float = 0.0
    backward_s: float = 0.0
    sync_s: float = 0.0  # after the backward pass
    ended: float | None = None  # when gradients were last synchronised
    collectives: list[Collective] = field(default_factory=list)  # of the last pass, on gradients


class SyncedModel(nn.Module):
    """`module` is the model itself; attributes that this has not are those of `module`."""

    def __init__(self, model: nn.Module, grad_sync: GradSync, *, ddp_prefix: bool = False) -> None:
        super().__init__()
        self.module, self.grad_sync, self.ddp_prefix = model, grad_sync, ddp_prefix
        wrapped: nn.Module = grad_sync.wrap(model)
        self._wrapped: tuple[nn.Module, ...] = (wrapped,)  # a tuple: no second name of parameters
        self._buffers_of = Buffers(grad_sync.ranks, model)
        self._batchnorms = batchnorm.synced_layers(model)
        self._device = next(model.parameters()).device
        self._unsynced: ExitStack | None = None  # while gradients only add up
        self._waiting_in = -1  # the backward pass whose end is waited for: torch's number of it
        self._share: float | None = None  # of the global batch, in this step
        self._measured = Measured()
        self._compute_s, self._entered = 0.0, 0.0  # in micro_batch
        self.register_load_state_dict_pre_hook(self._with_prefix)
        atexit.register(_leave_groups, weakref.ref(self))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._wrapped[0](*args, **kwargs)
        started = time.perf_counter()
        output = self._wrapped[0](*args, **kwargs)
        for one in tree_leaves(output):
            if isinstance(one, Tensor) and one.requires_grad:
                one.register_hook(self._await_the_end)
        self._measured.began = self._measured.began or started
        self._measured.forward_s += time.perf_counter() - started
        return output

    def _await_the_end(self, grad: Tensor) -> None:
        current = torch._C._current_graph_task_id()
        if self._waiting_in != current:
            self._waiting_in, self._backward_began = current, time.perf_counter()
            torch.autograd.Variable._execution_engine.queue_callback(self._complete)

    def _complete(self) -> None:
        """Called by the engine, when each gradient of the pass is there."""
        now = time.perf_counter()
        self._measured.backward_s += now - self._backward_began
        if not self.require_backward_grad_sync:
            return
        self._compute_s += now - (self._entered or now)
        ranks = self.grad_sync.ranks
        if ranks.world_size > 1:
            rows = self.grad_sync.exchange(self._wrapped[0], self._buffers_of.marks(self._device))
            share = 1 / ranks.world_size if self._share is None else self._share
            self._buffers_of.average(share, rows)
        self._measured.ended = time.perf_counter()
        self._measured.sync_s += self._measured.ended - now
        self._measured.collectives = ranks.ledger.take_step()

    def take_measured(self) -> Measured:
        """What was spent and sent since this was last asked."""
        taken, self._measured = self._measured, Measured()
        return taken

    def take_compute_s(self) -> float:
        """Seconds that this rank computed in `micro_batch`, since this was last asked."""
        taken, self._compute_s = self._compute_s, 0.0
        return taken

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients only add up; the first pass outside synchronises all of them."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether the next backward pass synchronises; scripts set it, as they do with DDP."""
        return self._unsynced is None

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, wanted: bool) -> None:
        if wanted and self._unsynced is not None:
            self._unsynced.close()
            self._unsynced = None
        elif not wanted and self._unsynced is None:
            self._unsynced = ExitStack()
            self._unsynced.enter_context(self.grad_sync.no_sync(self._wrapped[0]))

    @contextmanager
    def micro_batch(self, micro: Any) -> Iterator[None]:
        """Around forward and backward pass of a micro-batch of `muster.steps`.

        Only the last of a step synchronises. BatchNorm and the mean of buffers know how many
        samples this rank has.
        """
        self._share = micro.share
        batchnorm.count_samples(self._batchnorms, micro.samples > 0)
        self._entered = time.perf_counter()
        if micro.is_last:
            yield
        else:
            with self.no_sync():
                yield
            self._compute_s += time.perf_counter() - self._entered

    def train(self, mode: bool = True) -> "SyncedModel":
        super().train(mode)
        self._wrapped[0].train(mode)
        return self

    def state_dict(  # type: ignore[override]  # (of torch's two forms)
        self, *args: Any, prefix: str = "", **kwargs: Any
    ) -> dict[str, Any]:
        """The model's, without a prefix, or with that of torch's DDP."""
        own = prefix + PREFIX if self.ddp_prefix else prefix
        found: dict[str, Any] = self.module.state_dict(*args, prefix=own, **kwargs)
        return found

    @staticmethod
    def _with_prefix(
        module: "SyncedModel", state: dict[str, Any], prefix: str, *others: Any
    ) -> None:
        """Give names without the prefix that which the loading expects."""
        own = set(module.module.state_dict(prefix=prefix))
        for name in [one for one in state if one in own]:
            full = f"{prefix}{PREFIX}{name.removeprefix(prefix)}"
            if full not in own:
                state[full] = state.pop(name)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def _leave_groups(found: "weakref.ref[SyncedModel]") -> None:
    """Let go of the groups before the interpreter ends, which joins their threads.

    One that wants the interpreter while that ends aborts the process; destroy_process_group joins
    the threads of those groups only that nothing else holds.
    """
    model = found()
    if model is None:
        return
    model._wrapped = ()  # DDP holds the default group
    for one in (model.grad_sync, *model.modules()):
        _release(one, set())


def _release(owner: object, seen: set[int]) -> None:
    seen.add(id(owner))
    for name, value in list(vars(owner).items()):
        if isinstance(value, dist.ProcessGroup):
            vars(owner)[name] = None
            continue
        is_ours = type(value).__module__.startswith(__package__) and hasattr(value, "__dict__")
        if is_ours and id(value) not in seen:
            _release(value, seen)


def _require_the_same(model: nn.Module, ranks: Ranks) -> None:
    """Refuse a model whose parameters differ between ranks in name, shape, dtype or use."""
    forms = [
        f"{name} {tuple(param.shape)} {param.dtype} {param.requires_grad}"
        for name, param in model.named_parameters()
    ]
    digest = hashlib.sha256("\n".join(forms).encode()).digest()
    own = [len(forms), int.from_bytes(digest[:7], "big")]
    device = next(model.parameters()).device
    rows = ranks.all_gather(torch.tensor(own, dtype=torch.int64, device=device)).tolist()
    odd = [rank for rank, row in enumerate(rows) if row != rows[0]]
    if odd:
        raise UsageError(
            f"muster.sync: the model of rank {odd[0]} ({rows[odd[0]][0]} parameters) is not that "
            f"of rank 0 ({rows[0][0]} parameters): names, shapes, dtypes or requires_grad differ; "
            "build the same model on every rank"
        )
