"""The contract of a compressor: a hook that makes gradients approximately their mean over ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from muster.errors import UsageError

from ..base import DEFAULT_MB
from ..ddp.hooks import BackgroundThread, Bucket, BucketHook, summed
from ..plugins import own_plugins

Named = Mapping[str, Tensor]  # gradients by the names of their parameters
REMEMBERED = ("error", "right")  # kinds of tensors that compressors remember between steps


class Compressor(BucketHook):
    """The base class of a compressor that remembers what it leaves out (error feedback).

    F. Seide et al., "1-bit stochastic gradient descent", Interspeech 2014.

    What is left out of one step's gradient is added to the next step's. So it arrives late but is
    not lost. It is remembered by parameter name, since DDP rebuilds its buckets after the first
    pass.

    Large embeddings have few used rows: these are averaged without compression.
    """

    default_mb = DEFAULT_MB

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._names = {param: name for name, param in given[0].named_parameters()}
        self.thread = BackgroundThread(self.ranks, self.options, self.device)
        self._remembered: dict[str, Tensor] = {}
        self._next: dict[str, Tensor] = {}  # to be remembered once this bucket has become the mean

    def compress(self, gradients: Named) -> None:
        """Replace `gradients` by about their mean over ranks, in place: the same bits on all ranks.

        They are dense, of one dtype, and each has its parameter's shape. All ranks call it with the
        same names, in the background thread. Pass what is left out to `keep_error`.
        """
        raise NotImplementedError

    def send(self, bucket: Bucket) -> Future[Tensor]:
        _ = self.thread.ranks  # Creates the group in this thread, not in the background one.
        return self.thread.promise(self._average_bucket, bucket)

    def _average_bucket(self, bucket: Bucket) -> Tensor:
        for rows in bucket.rows:
            if rows.moved.numel():
                self.thread.ranks.all_reduce(rows.moved.div_(self.ranks.world_size))
        named = {
            self._names[param]: gradient
            for param, gradient in bucket.gradients.items()
            if gradient.numel()
        }
        if named:
            self.average_named(named)
        return bucket.put_back()

    @torch.no_grad()
    def average_named(self, named: Named) -> None:
        """Call `compress`; NaN and infinite values, the same on all ranks, are not remembered."""
        # A gradient of zeros was not used in this pass. DDP may discard the result if no rank has
        # used it, so none of its remembered error is sent.
        is_used = true_for([gradient.any() for gradient in named.values()])
        self._used = {name for name, used in zip(named, is_used, strict=True) if used}
        self._next = {}
        self.compress(named)
        if all(true_for([gradient.isfinite().all() for gradient in named.values()])):
            self._remembered.update(self._next)

    def keep(self, kind: str, name: str, tensor: Tensor) -> None:
        """Remember `tensor` until this parameter's next gradient; `kind` is one of `REMEMBERED`.

        It is dropped if the bucket's mean has NaN or infinite values.
        """
        self._next[self._key(kind, name)] = tensor

    def recall(self, kind: str, name: str, like: Tensor) -> Tensor | None:
        """The tensor that `keep` remembered, with the dtype of `like`; None if shapes differ."""
        remembered = self._remembered.get(self._key(kind, name))
        if remembered is None or remembered.shape != like.shape:
            return None
        return remembered.to(like)

    def with_error(self, gradients: Named) -> list[Tensor]:
        """Each gradient plus what earlier steps have left out of it."""
        corrected = []
        for name, gradient in gradients.items():
            error = self.recall("error", name, gradient) if name in self._used else None
            corrected.append(gradient if error is None else gradient + error)
        return corrected

    def keep_error(self, gradients: Named, flat: Tensor) -> None:
        """Remember `flat` (n,), what was left out of the result of `with_error`."""
        parts = flat.split([gradient.numel() for gradient in gradients.values()])
        for (name, gradient), part in zip(gradients.items(), parts, strict=True):
            error = part.view(gradient.shape)
            before = None if name in self._used else self.recall("error", name, gradient)
            self.keep("error", name, error.clone() if before is None else before + error)

    def state(self) -> dict[str, Tensor]:
        return dict(self._remembered)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`, without what another compressor has remembered.

        Raises:
            UsageError: it is so old that errors were stored by bucket number.
        """
        compressor = self.options.compress
        known = own_plugins("compression")
        keys = [name.split("/") for name in state]
        if any(key[0] in known and key[1] not in REMEMBERED for key in keys):
            raise UsageError(
                f"the checkpoint keeps what --compress {compressor} had left out bucket by bucket, "
                "as older versions did; give --reset-optimizer to begin with nothing"
            )
        self._remembered = {
            name: tensor for name, tensor in state.items() if name.startswith(f"{compressor}/")
        }

    def _key(self, kind: str, name: str) -> str:
        return f"{self.options.compress}/{kind}/{name}"


def true_for(answers: Sequence[Tensor]) -> list[bool]:
    """What each of the `answers` () is; on a GPU it is one wait for the device, not many."""
    return torch.stack(list(answers)).tolist() if answers else []


class Cast(BucketHook):
    """Send gradients as numbers of fewer bits; there is nothing to remember.

    One all_reduce of a bucket (n,), in `dtype`.
    """

    dtype: torch.dtype

    def start(self, flat: Tensor) -> Future[Tensor]:
        # divided first, so that the sum stays in the range of the small type
        small = (flat / self.ranks.world_size).to(self.dtype)
        return summed(small, self.ranks).then(lambda done: flat.copy_(done.value()))
