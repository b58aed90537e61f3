"""Our synchronisation where a framework makes torch's DDP itself: Accelerate, Trainer, Lightning.

How it works: DDP gets smaller buckets and one communication hook, before it exists. Large
embeddings are left out of its buckets (`_ddp_params_and_buffers_to_ignore`, which DDP reads once,
when it is made), and only the rows in use are averaged, as `all_reduce` does it: after the backward
pass, in which the hook of the first bucket asks for that. Under `no_sync` DDP calls no hook, and
so nothing is exchanged either.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from muster.errors import UsageError

from . import base
from .base import DEFAULT_MB, GradSync, SyncOptions
from .buckets import sparse_rows
from .compression.base import Compressor, load
from .ranks import Ranks, current_ranks

GLOO_MB = 4.0  # of a bucket on slow links, as in all_reduce
IGNORED = "_ddp_params_and_buffers_to_ignore"  # torch's name of it


def sync_ddp(
    framework: Any,
    model: nn.Module | None = None,
    *,
    compress: str = "none",
    compress_rank: int = 4,
    compress_share: float = 0.01,
    bucket_mb: float | None = None,
    sparse_rows: bool = True,
    timeout_s: float = 1800.0,
) -> Any:
    """Synchronise the gradients of a framework that makes torch's DDP itself; returns `framework`.

    Called alike by all ranks, before the framework has wrapped the model:

        muster.sync_ddp(accelerator, model)            # before accelerator.prepare
        muster.sync_ddp(trainer)                       # before trainer.train()
        L.Trainer(strategy=muster.sync_ddp(DDPStrategy()))

    Args:
        framework: an `Accelerator`, a transformers `Trainer`, or a Lightning `DDPStrategy`.
        model: what Accelerate will prepare; without it its embeddings go whole.
        compress: as in `muster.sync`.
        compress_rank: likewise.
        compress_share: likewise.
        bucket_mb: MiB of gradients per collective; None: 4 with gloo, 25 with NCCL.
        sparse_rows: of large embeddings send only the rows that some rank has used; with gloo.
        timeout_s: how long a rank may come late to the collective of these rows.

    Raises:
        UsageError: another kind of object, a hook that is there already, or a model that is
            wrapped already.
    """
    options = SyncOptions(
        bucket_mb=bucket_mb, sparse_rows=sparse_rows, compress=compress,
        compress_rank=compress_rank, compress_share=compress_share, timeout_s=timeout_s,
    )  # fmt: skip
    hook = DdpHook(options)
    if hasattr(framework, "accelerator") and hasattr(framework, "train"):
        _of_accelerate(framework.accelerator, hook, framework.model)
    elif hasattr(framework, "prepare_model") and hasattr(framework, "ddp_handler"):
        _of_accelerate(framework, hook, model)
    elif hasattr(framework, "_setup_model"):
        _of_lightning(framework, hook)
    else:
        raise UsageError(
            f"muster.sync_ddp: a {type(framework).__name__} is no Accelerator, no transformers "
            "Trainer and no DDPStrategy of Lightning; in a loop of your own, use muster.sync(model)"
        )
    return framework


class DdpHook:
    """What becomes of one DDP; made before it, and before there is a process group."""

    def __init__(self, options: SyncOptions) -> None:
        self._options = options
        self._compressor: Compressor | None = None
        self._rows: GradSync | None = None
        self._embeddings = nn.ModuleList()

    def prepare(self, model: nn.Module | None) -> dict[str, Any]:
        """How DDP is to be made of `model`, by its own options; collective."""
        ranks = current_ranks()
        on_gloo = dist.get_backend() == "gloo"
        self._compressor = load(ranks, self._options)
        if on_gloo and self._options.sparse_rows and model is not None:
            self._leave_out_embeddings(model, ranks)
        usual = GLOO_MB if on_gloo and self._compressor is None else DEFAULT_MB
        size = self._options.bucket_mb
        return {
            "bucket_cap_mb": usual if size is None or size == "auto" else size,
            "gradient_as_bucket_view": True,
        }

    def _leave_out_embeddings(self, model: nn.Module, ranks: Ranks) -> None:
        weights = sparse_rows.candidates(model)
        if not weights:
            return
        own = {id(weight) for weight in weights}
        ignored = [name for name, param in model.named_parameters() if id(param) in own]
        before = getattr(model, IGNORED, ())
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            model, [*before, *ignored]
        )
        holders = [one for one in model.modules() if isinstance(one, nn.Embedding)]
        self._embeddings = nn.ModuleList(one for one in holders if id(one.weight) in own)
        self._rows = base.build(
            "all_reduce", ranks, SyncOptions(levels=1, timeout_s=self._options.timeout_s)
        )
        self._rows.wrap(self._embeddings)  # which DDP does not make equal either

    def register(self, model: DistributedDataParallel) -> None:
        """Have `model`, just made, call this; where nothing is to be done, its own C++ does all."""
        if self._compressor is None and self._rows is None:
            return
        model.register_comm_hook(None, lambda _, bucket: self._averaged(bucket))

    def _averaged(self, bucket: dist.GradBucket) -> Future[Tensor]:
        if self._rows is not None and bucket.index() == 0:
            torch.autograd.Variable._execution_engine.queue_callback(self._exchange_rows)
        if self._compressor is not None:
            return self._compressor.hook(bucket)
        work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, async_op=True)
        averaged: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return averaged

    def _exchange_rows(self) -> None:
        assert self._rows is not None
        self._rows.sync(self._embeddings)
        self._rows.ranks.ledger.take_step()


def _of_accelerate(accelerator: Any, hook: DdpHook, model: nn.Module | None) -> None:
    """Accelerate asks its handler for DDP's options, and then to register a hook."""
    from accelerate.utils import DistributedDataParallelKwargs

    if accelerator._models:
        raise UsageError(
            "muster.sync_ddp: this Accelerator has prepared a model already; call it before prepare"
        )
    given = accelerator.ddp_handler or DistributedDataParallelKwargs()
    if str(given.comm_hook) != str(DistributedDataParallelKwargs().comm_hook):
        raise UsageError(
            f"muster.sync_ddp: the Accelerator has a communication hook ({given.comm_hook}), and "
            "DDP takes one only; leave it out and give compress=..., or leave sync_ddp out"
        )

    class Handler(DistributedDataParallelKwargs):  # type: ignore[misc]  # (it has no types)
        def to_kwargs(self) -> dict[str, Any]:
            return {**super().to_kwargs(), **hook.prepare(model)}

        def register_comm_hook(self, ddp: DistributedDataParallel) -> None:
            hook.register(ddp)

    accelerator.ddp_handler = Handler(**vars(given))


def _of_lightning(strategy: Any, hook: DdpHook) -> None:
    """Lightning's strategy makes DDP in one method, with options of its own."""
    if strategy._ddp_comm_hook is not None:
        raise UsageError(
            "muster.sync_ddp: the strategy has a ddp_comm_hook, and DDP takes one only; leave it "
            "out and give compress=..., or leave sync_ddp out"
        )
    setup = strategy._setup_model

    def set_up(model: nn.Module) -> DistributedDataParallel:
        strategy._ddp_kwargs.update(hook.prepare(model))
        made: DistributedDataParallel = setup(model)
        hook.register(made)
        return made

    strategy._setup_model = set_up
