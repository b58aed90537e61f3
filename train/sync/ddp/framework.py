"""Our synchronisation in a framework that makes torch's DDP itself: Accelerate, Trainer, Lightning.

It sets the bucket size before DDP is made, and registers the hook of `muster.sync`.
"""

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from muster.errors import UsageError, refuse

from ..base import SyncOptions
from ..modes.all_reduce import AllReduceHook
from .data_parallel import VIEWS, Way, hand_over, option_problems


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

        muster.sync_ddp(accelerator)                   # before accelerator.prepare
        muster.sync_ddp(trainer)                       # before trainer.train()
        L.Trainer(strategy=muster.sync_ddp(DDPStrategy()))

        >>> accelerator = muster.sync_ddp(accelerate.Accelerator(cpu=True))
        >>> model = accelerator.prepare(torch.nn.Linear(2, 1))

    Args:
        framework: an `Accelerator`, a transformers `Trainer`, or a Lightning `DDPStrategy`.
        model: ignored; accepted so that older scripts still run.
        compress: as in `muster.sync`.
        compress_rank: likewise.
        compress_share: likewise.
        bucket_mb: MiB of gradients per collective; None: 4 with gloo, 25 with NCCL.
        sparse_rows: of large embeddings send only the rows that some rank has used; with gloo.
        timeout_s: seconds that a rank may be late for a collective of a compressor's own group.

    Raises:
        UsageError: another kind of object, an invalid option, a hook that is registered
            already, or a model that is already wrapped.
    """
    options = SyncOptions(
        bucket_mb=bucket_mb, sparse_rows=sparse_rows, compress=compress,
        compress_rank=compress_rank, compress_share=compress_share, timeout_s=timeout_s,
    )  # fmt: skip
    refuse(option_problems(options), where="muster.sync_ddp: ")
    way = Way.of(AllReduceHook, options)
    accelerator = getattr(framework, "accelerator", framework)  # a Trainer holds one
    if hasattr(accelerator, "ddp_handler"):
        _of_accelerate(accelerator, way)
    elif hasattr(framework, "_setup_model"):
        _of_lightning(framework, way)
    else:
        raise UsageError(
            f"muster.sync_ddp: a {type(framework).__name__} is no Accelerator, no transformers "
            "Trainer and no DDPStrategy of Lightning; in a loop of your own, use muster.sync(model)"
        )
    return framework


def _of_accelerate(accelerator: Any, way: Way) -> None:
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

    hand_over(accelerator, lambda: way.buckets() | VIEWS, way.register, **vars(given))


def _of_lightning(strategy: Any, way: Way) -> None:
    """Wrap the one method in which Lightning's strategy makes DDP with its own options."""
    if strategy._ddp_comm_hook is not None:
        raise UsageError(
            "muster.sync_ddp: the strategy has a ddp_comm_hook, and DDP takes one only; leave it "
            "out and give compress=..., or leave sync_ddp out"
        )
    setup = strategy._setup_model

    def set_up(model: nn.Module) -> DistributedDataParallel:
        strategy._ddp_kwargs.update(**way.buckets(), **VIEWS)
        made: DistributedDataParallel = setup(model)
        way.register(made)
        return made

    strategy._setup_model = set_up
