"""torch's DistributedDataParallel, with another bucket size and another hook.

`muster.sync` creates it. Everything else is as usual with DDP: options, errors, `no_sync()`,
`join()`, names with `module.`. frameworks.py does the same for frameworks that create DDP
themselves.
"""

import inspect
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from muster import entry_points
from muster.arguments import number, one_of, whole_number
from muster.errors import UsageError, refuse

from .. import batchnorm, drift, plugins
from ..base import MIB, SyncOptions
from ..ranks import CollectiveLedger, Ranks, backend_of, current_ranks
from . import reducer
from .hooks import BucketHook

MODES = ("all_reduce", "ddp", "gather_scatter", "single")
MOST_MB = 1e6  # per bucket: larger than any model
VIEWS = {"gradient_as_bucket_view": True}  # no copy between bucket and gradient
# The DDP around each model, as long as both exist: either may be passed to checkpoints.
_wrappers: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[DistributedDataParallel]]" = (
    weakref.WeakKeyDictionary()
)
REMOVED_OPTIONS = {  # removed options, and what replaces them
    "compress_share": "it belonged to topk, which was removed; for powersgd, use compress_rank",
    "overlap": "communication always overlaps with the backward pass",
    "ddp_prefix": "names always begin with `module.`; model.module.state_dict() omits it",
}


def sync(
    model: nn.Module,
    mode: str = "all_reduce",
    *,
    compress: str = "none",
    compress_rank: int = 4,
    bucket_mb: float | None = None,
    sparse_rows: bool = True,
    synced_batchnorm: bool = False,
    timeout_s: float = 1800.0,
    **ddp_options: Any,
) -> "DistributedDataParallel | SingleProcess":
    """Return `DistributedDataParallel(model, **ddp_options)`, which averages gradients by `mode`.

    After `backward()` each `.grad` has the shape of its parameter, and is the mean over ranks, with
    the same bits on every rank. The process group must exist already. A single process without a
    group gets a wrapper with `module` and `no_sync()`, which synchronises nothing. On GPUs,
    "all_reduce" and "ddp" without `compress` are DDP itself, without a hook; everything else needs
    NCCL.

    All ranks of the group must call this: it sends the model from rank 0 to the others. A backward
    pass then costs one collective per bucket, two with "gather_scatter", three with "powersgd", and
    one more for the rows of embeddings; `no_sync()` skips all of them. On a GPU the stream waits
    for them, not the host.

        >>> model = muster.sync(torch.nn.Linear(2, 1))
        >>> model(torch.ones(3, 2)).sum().backward()
        >>> model.module.weight.grad
        tensor([[3., 3.]])

    Args:
        model: the model, on its device.
        mode: "all_reduce", "gather_scatter", "ddp" (torch's buckets, no hook) or "single".
        compress: "none", "bf16", "fp16" or "powersgd" (T. Vogels et al., NeurIPS 2019; torch's
            hook): fewer bytes, and gradients that are approximately the mean.
        compress_rank: rank of PowerSGD's matrices.
        bucket_mb: MiB of gradients per collective; None: the mode's default on gloo, else torch's
            25; 0: one collective per parameter.
        sparse_rows: with gloo, send only the rows of large embeddings that some rank has used.
        synced_batchnorm: BatchNorm layers see the samples of all ranks, even in unequal parts.
        timeout_s: seconds that a rank may be late for a collective of the mode's own groups.
        **ddp_options: DDP's options, such as `find_unused_parameters`, `static_graph` and
            `process_group`.

    Raises:
        UsageError: an option is unknown or does not fit, or there are several ranks but no process
            group.
    """
    options = SyncOptions(
        bucket_mb=bucket_mb, sparse_rows=sparse_rows, compress=compress,
        compress_rank=compress_rank, timeout_s=timeout_s,
    )  # fmt: skip
    refuse(_problems(mode, options, ddp_options), where="muster.sync: ")
    group = group_of(ddp_options)
    ranks = current_ranks() if group is None else Ranks(group.rank(), group.size(), group=group)
    if mode == "single" and ranks.world_size > 1:
        raise UsageError(
            f"muster.sync: mode 'single' is for one process, but world_size is {ranks.world_size}"
        )
    if not dist.is_initialized():
        return SingleProcess(model)
    if ranks.world_size > 1 and ranks.rank == 0 and (line := drift.note(model)):
        warnings.warn(f"muster.sync: {line}", stacklevel=2)
    if synced_batchnorm and ranks.world_size > 1:
        model = batchnorm.convert(model, timeout_s, ranks)
    hook_choice = HookChoice(None, options)
    if ranks.world_size > 1:
        hook_choice = HookChoice.for_mode(plugins.load_plugin("modes", mode).hook_class, options)
        hook_choice = hook_choice.for_device(device_of(model), group)
    ddp_options = hook_choice.bucket_options(device_of(model), group) | ddp_options
    if hook_choice.hook_class is None:
        plain = DistributedDataParallel(model, **ddp_options)
        _wrappers[model] = weakref.ref(plain)
        return plain
    return SyncedDataParallel(model, hook_choice, **ddp_options)


def group_of(ddp_options: Mapping[str, Any]) -> dist.ProcessGroup | None:
    """Return the group that DDP uses with these options; None is the default group."""
    group, mesh = ddp_options.get("process_group"), ddp_options.get("device_mesh")
    return mesh.get_group(mesh_dim=0) if group is None and mesh is not None else group


def device_of(model: nn.Module) -> torch.device:
    return next((param.device for param in model.parameters()), torch.device("cpu"))


def _problems(mode: Any, options: SyncOptions, ddp_options: Mapping[str, Any]) -> Iterator[str]:
    if mode is None or isinstance(mode, (list, tuple, int)):  # DDP's second parameter
        yield f"mode is {mode!r}: to set DDP's device_ids, pass device_ids={mode!r}"
    else:
        yield from _no_mode(mode)
    has_hook = mode != "ddp" or options.compress != "none"
    if ddp_options.get("mixed_precision") is not None and has_hook:
        yield (
            "mixed_precision= needs DDP's own communication hook, and DDP allows only one"
            "\ntip: use torch.autocast, or mode='ddp' without compress"
        )
    known = inspect.signature(DistributedDataParallel).parameters
    for name in sorted(ddp_options.keys() - known.keys()):  # also if there is only one rank
        if name in REMOVED_OPTIONS:
            yield f"the option {name} was removed: {REMOVED_OPTIONS[name]}"
        else:
            yield f"neither muster.sync nor DistributedDataParallel has an option {name}"
    yield from option_problems(options)
    if mode in ("gather_scatter", "single") and options.compress != "none":
        yield (
            f"compress={options.compress!r} does not work with mode {mode!r}\ntip: use 'all_reduce'"
        )
    if options.bucket_mb is not None and ddp_options.get("bucket_cap_mb") is not None:
        yield "bucket_mb and bucket_cap_mb both set the size of buckets\ntip: pass only one of them"


def _no_mode(mode: str) -> Iterator[str]:
    """Yield a line if DDP cannot work in this mode; another package's mode needs a hook for it."""
    if mode in MODES:
        return
    others = entry_points.names(entry_points.MODES)
    yield from one_of("mode", mode, *MODES, *others)
    if mode in others and not hasattr(plugins.load_plugin("modes", mode), "hook_class"):
        yield (
            f"mode {mode!r} has no hook for DDP (hook_class); it works only in Muster's own "
            "trainer: --sync"
        )


def option_problems(options: SyncOptions) -> Iterator[str]:
    """Yield a line for every option that a mode or a compressor cannot use."""
    if options.compress not in ("none", *plugins.own_plugins("compression")):
        names = ["none", *plugins.plugin_names("compression")]  # also those of other packages
        if options.compress not in names:
            known = ", ".join(names)
            known = entry_points.unknown(entry_points.COMPRESSORS, options.compress, known)
            yield f"compress is {options.compress!r}{known}"
    if options.bucket_mb is not None:
        yield from number("bucket_mb", options.bucket_mb, least=0, most=MOST_MB)
    yield from whole_number("compress_rank", options.compress_rank, 1)
    yield from number("timeout_s", options.timeout_s, above=0)


class HookChoice(NamedTuple):
    """The hook through which DDP sends its gradients, and its options."""

    hook_class: type[BucketHook] | None  # None: DDP has no hook
    options: SyncOptions

    @classmethod
    def for_mode(cls, of_mode: type[BucketHook] | None, options: SyncOptions) -> "HookChoice":
        """Choose the compressor's hook if there is a compressor, else the mode's hook."""
        if options.compress != "none":
            of_mode = plugins.load_plugin("compression", options.compress)
        return cls(of_mode, options)

    def for_device(
        self, device: torch.device, group: dist.ProcessGroup | None = None
    ) -> "HookChoice":
        """Leave out the hook if it adds nothing: GPUs send neither single rows nor 4 MiB buckets.

        Raises:
            UsageError: a hook would have to send from a GPU through gloo.
        """
        backend = backend_of(device, group)
        by_gloo = device.type == "cuda" and backend == "gloo"
        if self.hook_class is None or not (by_gloo or backend == "nccl"):
            return self
        if self.hook_class.is_as_ddp:
            return self._replace(hook_class=None)
        if by_gloo:
            name = self.hook_class.__module__.rpartition(".")[2]  # file name = the flag's value
            remedy = "--sync ddp, or mode='ddp' in muster.sync"
            if self.options.compress != "none":
                remedy = "--compress none, or compress='none' in muster.sync"
            raise UsageError(
                f"{name} on GPUs needs NCCL, but these ranks use gloo\ntip: use {remedy}"
            )
        return self

    def bucket_options(
        self, device: torch.device, group: dist.ProcessGroup | None = None
    ) -> dict[str, float]:
        """Return DDP's option for the bucket size on `device`; this needs a process group."""
        size = self.options.bucket_mb
        if size is None and self.hook_class is not None and backend_of(device, group) == "gloo":
            size = self.hook_class.default_mb
        return {} if size is None else {"bucket_cap_mb": max(size, 1 / MIB)}  # 0: one per parameter

    def register(
        self, model: DistributedDataParallel, ledger: CollectiveLedger | None = None
    ) -> BucketHook:
        """Register a hook with the new `model`, and return it; one without a class does nothing."""
        group, ledger = model.process_group, ledger or CollectiveLedger()
        ranks = Ranks(group.rank(), group.size(), group=group, ledger=ledger)
        hook = (self.hook_class or BucketHook)(model.module, ranks, self.options)
        hook.joins_of = weakref.ref(model)  # weak: Python cannot trace DDP's reference to the hook
        _wrappers[model.module] = weakref.ref(model)
        if self.hook_class is not None:
            model.register_comm_hook(None, hook.average)
        return hook


class SyncedDataParallel(DistributedDataParallel):
    """DDP with our hook, which its copies also have; nothing else differs.

    A hook has process groups, which can be neither copied nor pickled, so a copy creates new ones.
    What the original's compressor still had to send is not copied.
    """

    def __init__(self, model: nn.Module, hook_choice: HookChoice, **options: Any) -> None:
        super().__init__(model, **options)
        self._hook_choice = hook_choice
        self.hook = hook_choice.register(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**reducer.without_hooks(super().__getstate__()), "hook": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.hook = self._hook_choice.register(self)


def replicas_of(model: nn.Module) -> list[DistributedDataParallel]:
    """Return each DDP in `model`, and the DDP that `muster.sync` has put around it."""
    replicas = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    around = _wrappers.get(model)
    wrapper = None if around is None else around()
    return replicas if wrapper is None else [*replicas, wrapper]


def hook_of(model: DistributedDataParallel) -> BucketHook | None:
    """Return our hook, if `muster.sync` or `muster.sync_ddp` has registered one."""
    owners = [getattr(hook, "__self__", None) for hook in reducer.hooks_of(model)]
    return next((owner for owner in owners if isinstance(owner, BucketHook)), None)


class SingleProcess(nn.Module):
    """The methods of DDP that a script calls, for a single process without a group."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.require_backward_grad_sync = module, True

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.module(*given, **named)

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self, **_: Any) -> AbstractContextManager[None]:
        return nullcontext()
