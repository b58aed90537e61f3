"""torch's DistributedDataParallel as created by a framework, with our buckets and our hook.

Accelerate (and with it transformers' Trainer) and Lightning create DDP themselves. DDP must get the
bucket size when it is created, and the hook before its first pass. Both frameworks have public
interfaces for this:

* Accelerate asks `accelerator.ddp_handler` for options (`to_kwargs`), and has it register the hook
  with the new DDP (`register_comm_hook`).
* Lightning's `DDPStrategy.configure_ddp` puts DDP around `strategy.model`. The `DDPStrategy` of
  Lightning Fabric returns DDP from `setup_module(model)`.

Two things have no public interface. The last two functions of this file read private attributes
for them, which tests/train/sync/ddp/test_frameworks.py checks:

* whether an Accelerator has prepared a model: `_models`, to refuse it (1.15 shows that list only to
  a hook of `save_state`);
* what a DDPStrategy was given: `_ddp_kwargs` for DDP's options, since its constructor is the only
  public way to set them, and `_ddp_comm_hook`, to refuse it (Fabric's strategy takes no hook).
"""

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from muster.errors import UsageError, refuse

from .. import plugins
from ..base import SyncOptions
from .data_parallel import VIEWS, HookChoice, device_of, group_of, option_problems


def sync_ddp(
    framework: Any,
    model: nn.Module | None = None,
    *,
    compress: str = "none",
    compress_rank: int = 4,
    bucket_mb: float | None = None,
    sparse_rows: bool = True,
    timeout_s: float = 1800.0,
) -> Any:
    """Synchronise the gradients of a framework that creates torch's DDP; return `framework`.

    All ranks must call this in the same way, before the framework wraps the model; the call itself
    sends nothing. Each backward pass costs the same as with `muster.sync`:

        muster.sync_ddp(accelerator)                   # before accelerator.prepare
        muster.sync_ddp(trainer)                       # before trainer.train()
        L.Trainer(strategy=muster.sync_ddp(DDPStrategy()))
        L.Fabric(strategy=muster.sync_ddp(DDPStrategy()))     # of lightning.fabric.strategies

        >>> accelerator = muster.sync_ddp(accelerate.Accelerator(cpu=True))
        >>> model = accelerator.prepare(torch.nn.Linear(2, 1))

    Args:
        framework: an `Accelerator`, a transformers `Trainer`, or a `DDPStrategy` of Lightning or of
            Lightning Fabric.
        model: ignored; accepted so that older scripts still run.
        compress: as in `muster.sync`.
        compress_rank: likewise.
        bucket_mb: MiB of gradients per collective; None: 4 on CPUs (25 with "powersgd"), else
            torch's 25.
        sparse_rows: with gloo, send only the rows of large embeddings that some rank has used.
        timeout_s: seconds that a rank may be late for a collective of a compressor's own group.

    Raises:
        UsageError: another kind of object, an invalid option, a hook that is registered
            already, or a model that is already wrapped.
    """
    options = SyncOptions(
        bucket_mb=bucket_mb, sparse_rows=sparse_rows, compress=compress,
        compress_rank=compress_rank, timeout_s=timeout_s,
    )  # fmt: skip
    refuse(option_problems(options), where="muster.sync_ddp: ")
    hook_choice = HookChoice.for_mode(
        plugins.load_plugin("modes", "all_reduce").hook_class, options
    )
    accelerator = getattr(framework, "accelerator", framework)  # a Trainer holds one
    if hasattr(accelerator, "ddp_handler"):
        _sync_accelerate(accelerator, hook_choice)
    elif hasattr(framework, "configure_ddp"):
        _sync_lightning(framework, hook_choice, "configure_ddp")
    elif hasattr(framework, "setup_module") and hasattr(framework, "_ddp_kwargs"):
        _sync_lightning(framework, hook_choice, "setup_module")
    else:
        raise UsageError(
            "muster.sync_ddp: expected an Accelerator, a transformers Trainer, or a DDPStrategy "
            f"of Lightning or Lightning Fabric, got {type(framework).__name__}"
            "\ntip: in your own training loop, use muster.sync(model)"
        )
    return framework


def _sync_accelerate(accelerator: Any, hook_choice: HookChoice) -> None:
    if _has_prepared_models(accelerator):
        raise UsageError(
            "muster.sync_ddp: this Accelerator has already prepared a model"
            "\ntip: call muster.sync_ddp before prepare"
        )
    if (hook := str(getattr(accelerator.ddp_handler, "comm_hook", "no"))) != "no":
        raise UsageError(
            f"muster.sync_ddp: the Accelerator has a communication hook ({hook}), and DDP allows "
            "only one"
            "\ntip: remove the hook and pass compress=..., or leave out sync_ddp"
        )

    def options() -> dict[str, Any]:
        device = accelerator.device
        return {**hook_choice.for_device(device).bucket_options(device), **VIEWS}

    def register(model: DistributedDataParallel) -> None:
        hook_choice.for_device(device_of(model), model.process_group).register(model)

    hand_over(accelerator, options, register)


def hand_over(accelerator: Any, options: Any, register: Any) -> None:
    """Have Accelerate also pass `options()` to DDP, and call `register` with the new DDP."""
    from accelerate.utils import DistributedDataParallelKwargs

    class Handler(DistributedDataParallelKwargs):  # type: ignore[misc]  # (it has no types)
        def to_kwargs(self) -> dict[str, Any]:
            return {**super().to_kwargs(), **options()}

        register_comm_hook = staticmethod(register)

    given = accelerator.ddp_handler or DistributedDataParallelKwargs()
    accelerator.ddp_handler = Handler(**vars(given))


def _sync_lightning(strategy: Any, hook_choice: HookChoice, method: str) -> None:
    """Change the options with which a strategy's `method` creates DDP, and register the hook."""
    ddp_options, comm_hook = _strategy_options(strategy)
    if comm_hook is not None:
        raise UsageError(
            "muster.sync_ddp: the strategy has a ddp_comm_hook, and DDP allows only one"
            "\ntip: remove it and pass compress=..., or leave out sync_ddp"
        )
    make = getattr(strategy, method)

    def make_ddp(*given: nn.Module, **named: nn.Module) -> DistributedDataParallel:
        group = group_of(ddp_options)
        device = device_of(*([*given, *named.values()] or [strategy.model]))
        chosen = hook_choice.for_device(device, group)
        ddp_options.update(**chosen.bucket_options(device, group), **VIEWS)
        model: DistributedDataParallel = make(*given, **named) or strategy.model
        chosen.register(model)
        return model

    setattr(strategy, method, make_ddp)


def _has_prepared_models(accelerator: Any) -> bool:
    return bool(accelerator._models)


def _strategy_options(strategy: Any) -> tuple[dict[str, Any], Any]:
    """Return the strategy's own dict of options for DDP (no copy), and its hook or None."""
    return strategy._ddp_kwargs, getattr(strategy, "_ddp_comm_hook", None)
