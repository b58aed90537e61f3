"""A task is a model, its data, its loss and its metrics: all that the trainer knows of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Batch = dict[str, Tensor]
Answers = Tensor | Sequence[Any]  # one entry per sample


class Samples(Protocol):
    """A map-style dataset: any sample by its position, on every rank alike."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


class Datasets(NamedTuple):
    """The samples a task trains on, and the sets it is evaluated on by name ("" for the only one).

    Metrics of a named set carry the name as a suffix: `accuracy_mm` for MNLI's "mm".
    """

    train: Samples
    evaluation: Mapping[str, Samples]


class Output(NamedTuple):
    """One forward pass over a batch of n samples."""

    # The mean over the n samples; or, where the task has `units` of its own, (parts,): the mean
    # of each part of the loss over its units, 0 where a batch has none of them.
    loss: Tensor
    logits: Tensor  # (n, ...)


class Metric(Protocol):
    """A metric that is complete after one all_reduce(SUM) of `state` over the ranks."""

    state: Tensor  # float64, any shape; counts or sums, zero at first

    def update(self, logits: Tensor, labels: Tensor, positions: Tensor) -> None:
        """Count n samples: logits (n, ...), labels (n,), their positions in the set (n,)."""
        ...

    def compute(self) -> dict[str, float]:
        """The metrics by their own names, from the summed `state`."""
        ...


def in_float32(logits: Tensor) -> Tensor:
    """`logits` with at least float32's digits: the loss needs more of them than the layers."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


class Task(ABC):
    """Implemented by each file of train/tasks/, whose `build(config)` makes one.

    Every method is deterministic given the configuration, except for dropout.
    """

    loss_parts: tuple[str, ...] = ("loss",)  # of more than one, evaluation reports each

    def prepare(self) -> None:  # noqa: B027 (a task may need nothing)
        """Make what `build_datasets` reads (download, tokenise); skip what is there already.

        Runs on rank 0 while the others wait, then on one rank of each host that does not
        see what rank 0 made.

        Raises:
            UsageError: a file is missing or wrong; the message names file and line.
        """

    def is_prepared(self) -> bool:
        """Whether this process sees what `prepare` made."""
        return True

    @abstractmethod
    def build_datasets(self) -> Datasets: ...

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The model on the CPU in float32; random weights come from torch's seeded generator."""

    @abstractmethod
    def collate(self, samples: Sequence[Any]) -> Batch:
        """n samples as one batch; the key "labels" holds the n labels."""

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch) -> Output: ...

    @abstractmethod
    def metric(self, evaluation_set: Samples) -> Metric:
        """A fresh metric for one evaluation set."""

    def build_optimizer(self, model: nn.Module) -> Optimizer | None:
        """The task's own, over the parameters of `model`; None: that of --optimizer.

        With --sync zero1 or fsdp it must treat every value for itself.
        """
        return None

    def schedule(self, steps: int) -> Callable[[int], float] | None:
        """What the optimizer's learning rate is multiplied with, by the step from 0.

        `steps` are those until --schedule ends. None: that of --schedule.
        """
        return None

    def predictions(self, logits: Tensor, labels: Tensor) -> tuple[Answers, Answers]:
        """What n samples' logits (n, ...) and labels (n, ...) are to a metric of `--metrics`.

        Returns:
            What was predicted, and what is right: one entry per sample each. Classes, by default.
        """
        return logits.argmax(-1), labels

    def start_epoch(self, epoch: int) -> None:  # noqa: B027 (most samples stay the same)
        """Have the training samples be those of `epoch` (0 is the first): crops, masks."""

    def lengths(self, samples: Samples) -> Tensor | None:
        """Tokens that `collate` makes of each of `samples` alone: int64 (n,); a batch of several
        has as many as its longest for each of them.

        `samples` is one of the sets of `build_datasets`. None: all are alike, or it is not known
        before they are read.
        """
        return None

    def tokens(self) -> Any | None:
        """The tokenizer that belongs to the model, to be saved with it; None: there is none."""
        return None

    def units(self, batch: Batch) -> Tensor | None:
        """What each part of the loss is a mean over, in this batch: float64 (parts,), counts.

        Masked tokens, say. None: there is one part, a mean over samples. The counts are summed
        over all ranks before the forward pass, so that every part of the loss is the mean over
        the whole global batch, however it is split.
        """
        return None
