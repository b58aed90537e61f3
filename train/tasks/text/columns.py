"""The differences between text tasks: columns, labels and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from train.tasks.language.classifier import Labels

HUB_SET = "nyu-mll/glue"


class Part(NamedTuple):
    """The names of one set of samples."""

    file: str  # in GLUE's own folder
    split: str  # on the Hub


TRAIN = Part("train.tsv", "train")
DEV: Mapping[str, Part] = MappingProxyType({"": Part("dev.tsv", "validation")})


@dataclass(frozen=True, kw_only=True)
class Spec(Labels):
    """One task with a label per text or pair of texts, in its files and on the Hub.

    `name` is also its name in GLUE on the Hub; `labels` are in GLUE's order.
    """

    hub: tuple[str, ...] = ()  # its name on the Hub, if it is not in GLUE
    text: tuple[str, ...]  # columns of GLUE's files: one sentence or two
    label: str = "label"
    hub_text: tuple[str, ...] = ()  # columns on the Hub, if they differ
    metrics: tuple[str, ...] = ("accuracy",)
    columns: tuple[str, ...] | None = None  # of files that need no header line
    separator: str = "\t"  # of fields; if it is not a tab, the first field may contain it
    short_rows: bool = False  # the original files have rows without some fields: skip them
    train: Part = TRAIN
    evaluation: Mapping[str, Part] = field(default_factory=lambda: DEV)
    pad_multiple: int = 1  # samples are padded to a multiple of it

    @property
    def hub_name(self) -> tuple[str, ...]:
        """The Hub's name of the set, and of its configuration."""
        return self.hub or (HUB_SET, self.name)

    @property
    def parts(self) -> dict[str, Part]:
        """All sets by the name of their file in the cache; the first is for training."""
        evaluation = {
            f"dev_{name}" if name else "dev": part for name, part in self.evaluation.items()
        }
        return {"train": self.train, **evaluation}


class Examples(NamedTuple):
    """n samples as text."""

    texts: tuple[list[str], ...]  # one or two columns of n
    labels: list[float]  # n: class numbers in GLUE's order, or scores
