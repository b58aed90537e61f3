"""How one text task differs from the others: its columns, its labels and its metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from train.tasks.language.classifier import Labels

HUB_SET = "nyu-mll/glue"


class Part(NamedTuple):
    """One set of samples, by the names it goes by."""

    file: str  # in GLUE's own folder
    split: str  # on the Hub


TRAIN = Part("train.tsv", "train")
DEV: Mapping[str, Part] = MappingProxyType({"": Part("dev.tsv", "validation")})


@dataclass(frozen=True, kw_only=True)
class Spec(Labels):
    """One task with a label per text or pair of texts, as its files and the Hub have it.

    `name` is its set of GLUE on the Hub, too; `labels` are in GLUE's order.
    """

    hub: tuple[str, ...] = ()  # its name on the Hub, where it is not one of GLUE's
    text: tuple[str, ...]  # columns of GLUE's files: one sentence or two
    label: str = "label"
    hub_text: tuple[str, ...] = ()  # columns on the Hub, where they differ
    metrics: tuple[str, ...] = ("accuracy",)
    columns: tuple[str, ...] | None = None  # of files that need no header line
    separator: str = "\t"  # of fields; the first field may hold it, where it is another than a tab
    short_rows: bool = False  # the real files hold rows that lack fields: leave them out
    train: Part = TRAIN
    evaluation: Mapping[str, Part] = field(default_factory=lambda: DEV)
    pad_multiple: int = 1  # samples are filled up to a multiple of so many tokens

    @property
    def hub_name(self) -> tuple[str, ...]:
        """Where the Hub has it: the set, and which of its configurations."""
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
