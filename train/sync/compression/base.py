"""A compressor is a hook that makes gradients about their mean over ranks; what one must do."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from muster.errors import UsageError

from ..base import DEFAULT_MB, plugin_names
from ..ddp.hooks import Bucket, BucketHook, Lane, summed

Named = Mapping[str, Tensor]  # gradients, by the names of their parameters
REMEMBERED = ("error", "right")  # kinds of what is kept


class Compressor(BucketHook):
    """Implemented by each file beside this one that remembers what it leaves out (error feedback).

    It is added to the next step's gradient, so that nothing is lost for good, only late. It is
    remembered by the names of parameters, since DDP makes other buckets after the first pass.

    Rows of large embeddings are few: they are averaged as they are.
    """

    default_mb = DEFAULT_MB

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._names = {param: name for name, param in given[0].named_parameters()}
        self.lane = Lane(self.ranks, self.options, self.device)
        self._remembered: dict[str, Tensor] = {}
        self._next: dict[str, Tensor] = {}  # to be remembered, once this bucket is the mean

    def compress(self, gradients: Named) -> None:
        """Make `gradients` about their mean over ranks, in place, the same bits on every rank.

        They are dense and of one dtype. What is left out is handed to `keep_error`.
        """
        raise NotImplementedError

    def send(self, bucket: Bucket) -> Future[Tensor]:
        _ = self.lane.ranks  # whose group is made here: not in the thread
        return self.lane.promise(self._average_bucket, bucket)

    def _average_bucket(self, bucket: Bucket) -> Tensor:
        for rows in bucket.rows:
            if rows.moved.numel():
                self.lane.ranks.all_reduce(rows.moved.div_(self.ranks.world_size))
        named = {self._names[param]: one for param, one in bucket.gradients.items() if one.numel()}
        if named:
            self.average_named(named)
        return bucket.put_back()

    @torch.no_grad()
    def average_named(self, named: Named) -> None:
        """`compress`; what is no number on some rank, and so on all, is not remembered."""
        # All zero: not used in this pass. What DDP gets for it may be thrown away, if no rank has
        # used it; so nothing of what is remembered for it is sent.
        self._used = {name for name, gradient in named.items() if gradient.any()}
        self._next = {}
        self.compress(named)
        if all(bool(gradient.isfinite().all()) for gradient in named.values()):
            self._remembered.update(self._next)

    def keep(self, what: str, name: str, tensor: Tensor) -> None:
        """Remember `tensor` until that parameter comes again."""
        self._next[self._key(what, name)] = tensor

    def recall(self, what: str, name: str, like: Tensor) -> Tensor | None:
        """What was kept, if it has the form of `like`."""
        found = self._remembered.get(self._key(what, name))
        return None if found is None or found.shape != like.shape else found.to(like)

    def with_error(self, gradients: Named) -> list[Tensor]:
        """Each with what earlier steps have left out of it."""
        found = []
        for name, gradient in gradients.items():
            error = self.recall("error", name, gradient) if name in self._used else None
            found.append(gradient if error is None else gradient + error)
        return found

    def keep_error(self, gradients: Named, flat: Tensor) -> None:
        """Have `flat`, all that was left out of what `with_error` returned, added the next time."""
        parts = flat.split([gradient.numel() for gradient in gradients.values()])
        for (name, gradient), part in zip(gradients.items(), parts, strict=True):
            error = part.view(gradient.shape)
            before = None if name in self._used else self.recall("error", name, gradient)
            self.keep("error", name, error.clone() if before is None else before + error)

    def state(self) -> dict[str, Tensor]:
        return dict(self._remembered)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """What another way to compress kept is left out.

        Raises:
            UsageError: it is of a time when memory was kept by the numbers of buckets.
        """
        way, known = self.options.compress, plugin_names("compression")
        keys = [name.split("/") for name in state]
        if any(one[0] in known and one[1] not in REMEMBERED for one in keys):
            raise UsageError(
                f"the checkpoint keeps what --compress {way} had left out bucket by bucket, as "
                "older versions did; give --reset-optimizer to begin with nothing"
            )
        self._remembered = {name: one for name, one in state.items() if name.startswith(f"{way}/")}

    def _key(self, what: str, name: str) -> str:
        return f"{self.options.compress}/{what}/{name}"


class Cast(BucketHook):
    """Gradients travel as numbers of fewer bits; there is nothing to remember."""

    dtype: torch.dtype

    def start(self, flat: Tensor) -> Future[Tensor]:
        # divided first, so that the sum does not leave the small type's range
        small = (flat / self.ranks.world_size).to(self.dtype)
        return summed(small, self.ranks).then(lambda done: flat.copy_(done.value()))
