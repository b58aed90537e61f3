"""A sync mode makes every rank's gradients the plain mean over ranks; this is what one must do."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from muster.errors import UsageError

from .ranks import Ranks

MIB = 2**20
DEFAULT_MB = 25.0  # torch's own for DDP
CLIP_EPSILON = 1e-6  # torch clips to limit / (norm + this)


@dataclass(frozen=True, kw_only=True)
class SyncOptions:
    """What sync modes and compressors can be told; each uses what concerns it."""

    bucket_mb: float | None = None  # MiB per collective; None: the mode's own
    overlap: bool = True  # whether gradients are sent while others are computed
    sparse_rows: bool = True  # whether embeddings send the rows in use only
    compress: str = "none"  # or a file of compression/
    compress_rank: int = 4  # of PowerSGD's matrices
    compress_share: float = 0.01  # of the gradients' values, that topk sends
    sync_every: int = 16  # steps of local_sgd between two averages
    outer_lr: float = 1.0  # of local_sgd
    outer_momentum: float = 0.0  # likewise
    timeout_s: float = 120.0  # that a rank may come late to a collective of a mode's own groups

    def bucket_bytes(self, default_mb: float) -> int:
        """The size of buckets, where `default_mb` is the mode's own."""
        return int((default_mb if self.bucket_mb is None else self.bucket_mb) * MIB)


class GradSync:
    """Each file of modes/ derives from it, and its `build(ranks, options)` makes one.

    By itself it is the plain training of one process, which every exact mode equals.
    """

    is_exact = True  # whether a run equals the same run in a single process
    same_passes = False  # whether all ranks have to run the model equally often in a step

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        self.ranks, self.options = ranks, options
        # of the last step: communication during the backward pass
        # (`waited_s`: within `backward`, for what it had sent: it counts as `sync`)
        self.comm_s = self.overlapped_s = self.waited_s = 0.0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model to train; afterwards its replicas are equal on all ranks.

        It may be `model` in a wrapper: the parameters to train stay those of `model`, which is
        evaluated and saved without it.
        """
        self.ranks.broadcast([*model.parameters(), *model.buffers()])
        return model

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        """The optimizer to step."""
        return optimizer

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass; may start communication early."""
        loss.backward()

    def used(self, model: nn.Module) -> list[bool]:
        """Which gradients this rank has, where a mode has to know whether any rank has them."""
        return []

    def sync(self, model: nn.Module, used: Sequence[bool] = ()) -> None:
        """Afterwards each `.grad` is the mean over ranks, bitwise the same on every rank.

        About the mean, with `compress`; and a mode that is not exact may leave gradients local.
        A gradient missing on every rank stays None; one missing on some counts as zero there.
        `used` is what any rank has said by `used`.
        """

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Around every micro-batch of a step but its last: gradients only add up locally."""
        return nullcontext()

    def clip(self, params: Sequence[nn.Parameter], limit: float) -> Tensor:
        """Scale the gradients down to a norm of `limit` (0: never); their norm before that.

        It is that of all gradients, the same on every rank, wherever they lie; one that is no
        number reaches all of them. `params` are those of the model that `wrap` returned.
        """
        norm = self.norm([param.grad for param in params if param.grad is not None])
        # Where nothing is clipped, nothing is multiplied; but on a GPU to ask would be to wait.
        if limit and (norm.is_cuda or not bool(norm + CLIP_EPSILON <= limit)):
            nn.utils.clip_grads_with_norm_(params, limit, norm)
        return norm

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """That of `gradients`, this rank's, with those of all others."""
        return nn.utils.get_total_norm(gradients)

    def updated(self, model: nn.Module) -> None:
        """The optimizer has taken its step: for modes that synchronise parameters."""

    def finished(self) -> None:
        """The device has done all of the step: for modes that time it by the device's events."""

    def settle(self, model: nn.Module) -> None:
        """Afterwards replicas are equal, with what their optimizers keep: to evaluate, to save."""

    def whole(self, model: nn.Module) -> AbstractContextManager[None]:
        """Within it, `model` has all of its parameters: to evaluate, to save, to load. Collective.

        `model` is what `wrap` was given. A mode that keeps no parameter whole between steps has
        them here; what was loaded into them counts if `restore` is called within.
        """
        return nullcontext()

    def optimizer_state(
        self, model: nn.Module, optimizer: Optimizer
    ) -> Iterator[tuple[nn.Parameter, Mapping[str, Any]]]:
        """What the optimizer keeps of each parameter of `model`, whole, one by one. Collective."""
        for param in model.parameters():
            yield param, optimizer.state.get(param, {})

    def set_optimizer_state(
        self, optimizer: Optimizer, param: nn.Parameter, state: dict[str, Any]
    ) -> None:
        """Have the optimizer keep of `param` what `optimizer_state` returned."""
        optimizer.state[param] = state

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of this rank beside the model; the same forms on every rank."""
        return {}

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Go on with a model that was just loaded, and with what `state` returned.

        Where the number of ranks has changed, only what was the same on all of them is there.
        """


def build(mode: str, ranks: Ranks, options: SyncOptions) -> GradSync:
    """The sync mode of that name, a file of modes/; a process alone has nothing to synchronise.

    Raises:
        UsageError: there is no such file; the message lists those there are.
    """
    kind: type[GradSync] = load_plugin("modes", mode)
    if ranks.world_size == 1:
        kind = GradSync
    elif hasattr(kind, "average") and not (options.overlap and options.bucket_mb != 0):
        from .after_backward import AfterBackward

        loop = AfterBackward(ranks, options)
        loop.average = kind.average
        return loop
    return kind(ranks, options)


def load_plugin(folder: Literal["modes", "compression"], name: str) -> Any:
    """The `build` of a plug-in of this package, by whatever name the package was imported.

    Raises:
        UsageError: there is no such file; the message lists those there are.
    """
    known = plugin_names(folder)
    if name not in known:
        raise UsageError(f"sync/{folder}: unknown {name!r}; known: {', '.join(known)}")
    return import_module(f".{folder}.{name}", __package__).build


def plugin_names(folder: Literal["modes", "compression"]) -> list[str]:
    """The plug-ins of this package there are."""
    files = Path(__file__).with_name(folder).glob("[!_]*.py")
    return sorted(file.stem for file in files if file.stem != "base")
