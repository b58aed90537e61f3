"""The contract of a sync mode: it replaces every rank's gradients by the plain mean over ranks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .ranks import Ranks

MIB = 2**20
DEFAULT_MB = 25.0  # torch's default for DDP
CLIP_EPSILON = 1e-6  # torch clips to limit / (norm + this)


@dataclass(frozen=True, kw_only=True)
class SyncOptions:
    """The options of sync modes and compressors; each uses only the options that it needs."""

    bucket_mb: float | None = None  # MiB per collective; None: the mode's default
    overlap: bool = True  # whether gradients are sent while others are still computed
    sparse_rows: bool = True  # whether only the used rows of embeddings are sent
    compress: str = "none"  # or the name of a file in compression/
    compress_rank: int = 4  # rank of PowerSGD's matrices
    sync_every: int = 16  # steps of local_sgd between two averages
    outer_lr: float = 1.0  # of local_sgd
    outer_momentum: float = 0.0  # also of local_sgd
    timeout_s: float = 600.0  # how late a rank may be for a collective of the mode's own groups

    def bucket_bytes(self, default_mb: float) -> int:
        """The size of a bucket in bytes; `default_mb` is the mode's default in MiB."""
        return int((default_mb if self.bucket_mb is None else self.bucket_mb) * MIB)


class GradSync:
    """The base class of modes; in each file of modes/, `build(ranks, options)` creates one.

    The base class itself trains in a single process. Every exact mode gives the same result.
    """

    is_exact = True  # whether a run gives the same result as a run in a single process
    # whether all ranks must run the model the same number of times, in a step and in an evaluation
    same_passes = False

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        self.ranks, self.options = ranks, options
        # Seconds of communication that the last step's backward pass started, and how many of them
        # passed while gradients were computed.
        self.comm_s = self.overlapped_s = 0.0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model to train; afterwards its replicas are equal on all ranks.

        The result may be `model` in a wrapper. The parameters to train are the ones that `model`
        has afterwards; it is evaluated and saved without the wrapper.
        """
        self.ranks.broadcast([*model.parameters(), *model.buffers()])
        return model

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        """Return the optimizer to step."""
        return optimizer

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass; this may start communication."""
        loss.backward()

    def used(self, model: nn.Module) -> list[bool]:
        """Return which gradients this rank has; an empty list if the mode need not know."""
        return []

    def sync(self, model: nn.Module, used: Sequence[bool] = ()) -> None:
        """Replace each `.grad` by the mean over ranks, with the same bits on every rank.

        With `compress` it is approximately the mean. A mode that is not exact may leave gradients
        local. A gradient missing on every rank stays None; one missing on some ranks counts as zero
        there. `used` tells for each gradient whether any rank's method `used` reported it.
        """

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """A context for every micro-batch of a step but its last: gradients only add up locally."""
        return nullcontext()

    def clip(self, params: Sequence[nn.Parameter], limit: float) -> Tensor:
        """Scale the gradients down to a norm of `limit` (0: never); return their norm before that.

        The norm covers all gradients, whichever rank holds them, and is the same on every rank. A
        NaN or infinite gradient makes the norm NaN or infinite on all ranks. `params` are the
        parameters of the model that `wrap` returned.
        """
        norm = self.norm([param.grad for param in params if param.grad is not None])
        # If nothing needs clipping, do not multiply. On a GPU the test would wait for the device.
        if limit and (norm.is_cuda or not bool(norm + CLIP_EPSILON <= limit)):
            nn.utils.clip_grads_with_norm_(params, limit, norm)
        return norm

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of this rank's `gradients` together with those of all other ranks."""
        return nn.utils.get_total_norm(gradients)

    def updated(self, model: nn.Module) -> None:
        """Called after the optimizer's step, for modes that synchronise parameters."""

    def sync_seconds(self) -> Callable[[], tuple[float, float]]:
        """Return a function that gives `comm_s` and `overlapped_s` of the step that ends now.

        It is called when the device has finished that step; the next step may have begun by then.
        """
        seconds = self.comm_s, self.overlapped_s
        return lambda: seconds

    def make_replicas_equal(self, model: nn.Module) -> None:
        """Make replicas and optimizer states equal on all ranks, before an evaluation or a save."""

    def full_parameters(self, model: nn.Module) -> AbstractContextManager[None]:
        """A context in which rank 0 can save `model`, the model that `wrap` was given. Collective.

        A mode that splits parameters gives rank 0 the whole parameters here, on its CPU; other
        ranks get nothing.
        """
        return nullcontext()

    def values(self, model: nn.Module) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield each parameter of `model` with all of its values. Collective."""
        for param in model.parameters():
            yield param, param.detach()

    def set_values(self, param: nn.Parameter, values: Tensor) -> None:
        """Copy all `values` into `param`, a parameter of the model that `wrap` was given."""
        param.detach().copy_(values)

    def optimizer_state(
        self, model: nn.Module, optimizer: Optimizer
    ) -> Iterator[tuple[nn.Parameter, Mapping[str, Any]]]:
        """Yield each parameter of `model` with its whole optimizer state. Collective."""
        for param in model.parameters():
            yield param, optimizer.state.get(param, {})

    def set_optimizer_state(
        self, optimizer: Optimizer, param: nn.Parameter, state: dict[str, Any]
    ) -> None:
        """Set the optimizer's state of `param` to a state that `optimizer_state` yielded."""
        optimizer.state[param] = state

    def state(self) -> dict[str, Tensor]:
        """Return this rank's own state for a checkpoint; the shapes are the same on every rank."""
        return {}

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Continue with a model that was just loaded, and with a `state` from the method `state`.

        If the number of ranks has changed, `state` holds only what was the same on all of them.
        """
