"""Which samples each rank computes: one seeded permutation per epoch, cut into global batches.

Step k of an epoch takes samples [k*M, (k+1)*M) of the permutation, whatever the number of ranks.
The split and the samples' lengths only decide which rank computes which sample. So neither the
batches nor the loss curve depend on the number of ranks or on the split.
"""

import itertools
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from muster.errors import UsageError

from ..model.rng import hash_seed
from ..sync import batchnorm
from .by_length import Cut

MAX_INT32 = 2**31 - 1
BLOCK = 4096  # entries of a tensor that are converted to Python numbers together


def each(values: Sequence[Any] | Tensor) -> Iterable[Any]:
    """The entries of `values`, as Python numbers if it is a tensor (n,)."""
    if not isinstance(values, Tensor):
        return values
    return (number for part in values.split(BLOCK) for number in part.tolist())


def packed(code: str, values: Sequence[Any] | Tensor) -> "array[Any]":
    """`values` in 8 bytes each (up to 40 in a list): `code` is "q" for whole numbers, or "d".

    Reading an entry is as fast as from a list, and faster than from a tensor.
    """
    return array(code, each(values))


def split_batch(size: int, weights: Sequence[float]) -> list[int]:
    """Divide `size` samples by `weights`, into whole numbers, by the largest remainder method.

    A weight of zero gets zero samples. Ties go to the lower rank.
    """
    total = math.fsum(weights)
    ideal = [size * weight / total for weight in weights]
    parts = [math.floor(part) for part in ideal]
    by_remainder = sorted(
        (rank for rank, weight in enumerate(weights) if weight > 0),
        key=lambda rank: (parts[rank] - ideal[rank], rank),
    )
    for rank in by_remainder[: size - sum(parts)]:
        parts[rank] += 1
    return parts


def _parts(samples: Sequence[int], weights: Sequence[float]) -> list[Sequence[int]]:
    ends = list(itertools.accumulate(split_batch(len(samples), weights), initial=0))
    return [samples[start:end] for start, end in itertools.pairwise(ends)]


@dataclass(frozen=True)
class MicroBatch:
    """Samples that one rank computes in one forward pass.

    `indices` (n,) are their positions in the dataset. A rank without samples gets a dummy sample of
    weight 0, so that all ranks run the same collectives. The loss to differentiate is the mean over
    the n samples times `weight`. `tokens` counts padding. `share`, from 0 to 1, is this rank's part
    of the global batch.
    """

    indices: tuple[int, ...]
    # With the factor n * world_size / M, the plain mean over ranks of the sum over micro-batches is
    # the mean over all M samples. If samples count unequally, n and M are sums of units. The weight
    # is zero for the dummy of a rank without samples, or without units.
    weight: float
    tokens: int = 0  # padding included; 0 if lengths are unknown, or for a dummy
    share: float = 1.0  # this rank's part of the global batch in this step
    is_last: bool = True  # whether it is this rank's last micro-batch of the step
    # "accumulation" or "lengths" if each rank cuts its own part accordingly, "units" if a rank may
    # leave out samples that do not count; "" if the passes of all ranks together are one
    # micro-batch, which is the same on any number of ranks.
    cut_by: str = ""

    @property
    def samples(self) -> int:
        """The number of samples that count: 0 for a dummy."""
        return len(self.indices) if self.weight > 0 else 0

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """A context for its forward and backward pass: only a step's last pass synchronises.

        Every rank must use it, with the `model` that `muster.sync` returned. It has no collective
        of its own. It also sets whether the BatchNorm layers of
        `muster.sync(..., synced_batchnorm=True)` count this micro-batch.

        Raises:
            UsageError: there are such layers, and each rank cuts its micro-batches on its own, or
                may leave out samples.
        """
        layers = batchnorm.synced_layers(model)
        if layers and self.cut_by == "units":
            raise UsageError(
                "muster.steps: some units= are 0. A rank whose samples all have 0 units does "
                "not compute them, but synced_batchnorm=True needs all samples, so losses would "
                "depend on the number of ranks"
                "\ntip: leave out these samples or synced_batchnorm=True"
            )
        if layers and self.cut_by:
            raise UsageError(
                f"muster.steps: with {self.cut_by}= each rank splits its samples into "
                "micro-batches on its own, but synced_batchnorm=True needs the same number of "
                "them on all ranks: losses would depend on the number of ranks, or ranks would "
                "wait for each other"
                f"\ntip: leave out {self.cut_by}= or synced_batchnorm=True"
            )
        batchnorm.count_samples(layers, self.samples > 0)
        try:
            with nullcontext() if self.is_last else model.no_sync():  # type: ignore[operator]
                yield
        finally:
            batchnorm.count_samples(layers, True)


@dataclass(frozen=True)
class StepPlan:
    """One step of one rank: its micro-batches, at least one.

    `samples` is the size of the global batch. `step` counts from 1, `epoch` from 0.
    """

    samples: int  # M, of the global batch
    micro_batches: tuple[MicroBatch, ...]
    step: int = 0  # its number, from 1, if steps are counted
    epoch: int = 0  # 0 is the first

    @property
    def local_samples(self) -> int:
        """The samples of this rank in this step."""
        return sum(micro.samples for micro in self.micro_batches)

    @property
    def local_tokens(self) -> int:
        """The tokens of this rank in this step, with padding; 0 if lengths are unknown."""
        return sum(micro.tokens for micro in self.micro_batches)


@dataclass(frozen=True)
class BatchPlan:
    """The samples of every step of every epoch, on every rank."""

    dataset_size: int
    batch_size: int  # global
    weights: tuple[float, ...]  # one per rank
    accumulation: int
    seed: int
    # Whether the batch is first cut into micro-batches, which are then divided among the ranks. A
    # layer that sees a whole micro-batch (BatchNorm) then sees the same one on any number of ranks.
    in_step: bool = False
    # Whether all ranks run the same number of passes in a step, as needed if each is a collective.
    same_passes: bool = False
    lengths: Sequence[int] = ()  # tokens of each sample; empty if unknown, or all equal
    pass_tokens: float | None = None  # see train/batches/by_length.py; None: ignore lengths
    units: Sequence[float] = ()  # each sample's weight in the mean loss; empty: all equal

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.dataset_size / self.batch_size)

    @property
    def by_length(self) -> bool:
        return self.pass_tokens is not None

    @cached_property
    def _cut_by(self) -> str:
        """See `MicroBatch.cut_by`."""
        if len(self.weights) == 1:
            return ""
        if self.by_length:
            return "lengths"
        if self.accumulation > 1 and not self.in_step:
            return "accumulation"
        return "units" if self.units and min(self.units) == 0 else ""

    def epoch(self, epoch: int, rank: int, done: int = 0) -> Iterator[StepPlan]:
        """The steps of one epoch (0 is the first) for one rank, after the first `done`."""
        order = torch.randperm(
            self.dataset_size,
            generator=torch.Generator().manual_seed(hash_seed(self.seed, epoch)),
            dtype=torch.int32 if self.dataset_size <= MAX_INT32 else torch.int64,
        )
        for start in range(done * self.batch_size, self.dataset_size, self.batch_size):
            batch = order[start : start + self.batch_size].tolist()
            yield self._by_length(batch, rank) if self.by_length else self._cut(batch, rank)

    def _cut(self, batch: Sequence[int], rank: int) -> StepPlan:
        evenly = [1.0] * self.accumulation
        if self.in_step:
            parts = [_parts(micro, self.weights)[rank] for micro in _parts(batch, evenly)]
        else:
            parts = _parts(_parts(batch, self.weights)[rank], evenly)
        return self._step(batch, parts)

    def _by_length(self, batch: Sequence[int], rank: int) -> StepPlan:
        ordered = sorted(batch, key=self.lengths.__getitem__)
        cut = Cut(
            [self.lengths[index] for index in ordered],
            self.weights,
            self.pass_tokens or 0.0,
            self.accumulation,
        )
        plain = [
            (len(part), max((self.lengths[index] for index in part), default=0))
            for part in _parts(batch, self.weights)
        ]
        of_each = cut.best(plain)
        most = max(map(len, of_each)) if self.same_passes else 1
        runs = [*of_each[rank], *[range(0)] * max(0, max(1, most) - len(of_each[rank]))]
        return self._step(ordered, [ordered[run.start : run.stop] for run in runs])

    def _step(self, batch: Sequence[int], parts: Sequence[Sequence[int]]) -> StepPlan:
        # A rank without samples still runs its forward passes, with weight zero, so that the
        # collectives of all ranks match. The mean over a part without units would be 0 / 0.
        share = sum(map(len, parts)) / len(batch)
        dummy = max(batch, key=self.units.__getitem__) if self.units else batch[0]
        parts = [part if self._count(part) else () for part in parts]
        micro_batches = (
            MicroBatch(
                tuple(part) or (dummy,),
                self._count(part) * len(self.weights) / self._count(batch) if part else 0.0,
                self._padded_tokens(part),
                share,
                number == len(parts),
                self._cut_by,
            )
            for number, part in enumerate(parts, start=1)
        )
        return StepPlan(len(batch), tuple(micro_batches))

    def _padded_tokens(self, samples: Sequence[int]) -> int:
        """The tokens of one pass over `samples`, with padding; 0 if lengths are unknown."""
        if not self.lengths:
            return 0
        return len(samples) * max((self.lengths[index] for index in samples), default=0)

    def _count(self, samples: Sequence[int]) -> float:
        """The weight of `samples` in the mean loss: the sum of their units."""
        return math.fsum(self.units[index] for index in samples) if self.units else len(samples)


def evaluation_indices(
    size: int,
    rank: int,
    world_size: int,
    batch_size: int,
    lengths: Sequence[int] = (),
    *,
    same_passes: bool = False,
) -> Iterator[list[int]]:
    """The batches of an evaluation set that `rank` computes; over all ranks, each sample once.

    With `lengths`, samples of similar length are batched together, and every rank has short and
    long ones. With `same_passes`, every rank has the same number of batches; the last may be empty.
    """
    if len(lengths):
        widths = torch.frombuffer(packed("q", lengths), dtype=torch.int64)
        indices = widths.argsort(stable=True)[rank::world_size]
    else:
        indices = torch.arange(size).split(split_batch(size, [1.0] * world_size))[rank]
    longest = -(-size // world_size) if same_passes else len(indices)
    for start in range(0, longest, batch_size):
        yield indices[start : start + batch_size].tolist()
