"""The interface of a task to the trainer: a model, its data, its loss and its metrics."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Batch = dict[str, Tensor]
Answers = Tensor | Sequence[Any]  # one entry per sample


class Samples(Protocol):
    """A map-style dataset: any sample by its position, the same on every rank."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


class Datasets(NamedTuple):
    """The samples a task trains on, and the sets it is evaluated on by name ("" for the main set).

    Metrics of a named set carry the name as a suffix: `accuracy_mm` for MNLI's "mm".
    """

    train: Samples
    evaluation: Mapping[str, Samples]


class Unlabelled(NamedTuple):
    """n samples whose labels are to be predicted."""

    keys: Sequence[str]  # n, their names in the file of predictions
    texts: Sequence[Sequence[str]]  # one or two columns of n


class Output(NamedTuple):
    """One forward pass over a batch of n samples."""

    # The mean over the n samples. If the task has its own `units`, (parts,): the mean of each part
    # of the loss over its units, 0 for a batch without any.
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
    """`logits` in at least float32, because the loss needs more precision than the layers."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


class Task(ABC):
    """The base class of tasks; `build(config)` in each file of train/tasks/ makes a task.

    Every method is deterministic given the configuration, except for dropout.
    """

    loss_parts: tuple[str, ...] = ("loss",)  # if there are several, evaluation reports each
    takes_new_head = False  # whether --new-head applies

    def prepare(self) -> None:  # noqa: B027 (a task may need nothing)
        """Make what `build_datasets` reads (download, tokenise); skip existing parts.

        Runs on rank 0 while the others wait, then on one rank of each host that does not see the
        result of rank 0.

        Raises:
            UsageError: a file is missing or wrong; the message names the file and line.
        """

    def is_prepared(self) -> bool:
        """Whether this process sees the result of `prepare`."""
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
        """The task's own optimizer over the parameters of `model`; None: that of --optimizer.

        With --sync zero1 or fsdp it must treat every value separately.
        """
        return None

    def schedule(self, steps: int) -> Callable[[int], float] | None:
        """The factor of the optimizer's learning rate as a function of the step, from 0.

        `steps` is the number of steps until --schedule ends. None: the schedule of --schedule.
        """
        return None

    def predictions(self, logits: Tensor, labels: Tensor) -> tuple[Answers, Answers]:
        """The input of a metric of `--metrics` from n samples' logits (n, ...) and labels (n, ...).

        Returns:
            The predictions and the references: one entry per sample each. Classes, by default.
        """
        return logits.argmax(-1), labels

    def start_epoch(self, epoch: int) -> None:  # noqa: B027 (most samples stay the same)
        """Set the training samples to those of `epoch` (0 is the first): crops, masks."""

    def lengths(self, samples: Samples) -> Tensor | None:
        """Tokens of each sample after `collate` alone: int64 (n,); batches pad to the longest.

        `samples` is one of the sets of `build_datasets`. None: all are equal, or lengths are
        unknown before the samples are read.
        """
        return None

    def tokens(self) -> Any | None:
        """The tokenizer of the model, to be saved with it; None if there is none."""
        return None

    def units(self, batch: Batch) -> Tensor | None:
        """The number of units in this batch for each part of the loss: float64 (parts,).

        Units are, for example, masked tokens. None: there is one part, a mean over samples. The
        counts are summed over all ranks before the forward pass, so that every part of the loss is
        the mean over the whole global batch, for any split.
        """
        return None


@runtime_checkable
class PredictingTask(Protocol):
    """A task that also has sets without labels, such as those of a competition."""

    def unlabelled(self) -> Mapping[str, Unlabelled]:
        """Each set by the name of the file that its predictions go to."""
        ...

    def batch_of(self, unlabelled: Unlabelled, rows: Sequence[int]) -> Batch:
        """Collate these rows into one batch without labels."""
        ...

    def logits(self, model: nn.Module, batch: Batch) -> Tensor: ...

    def answers(self, logits: Tensor) -> list[str]:
        """The predictions of n samples as the file spells them, from logits (n, ...)."""
        ...
