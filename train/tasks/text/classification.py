"""A text with one label: read from GLUE's own files or the Hub, and scored by its own metrics.

The error about a wrong row names its file and line.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.evaluation.metrics import Confusion, Correlation
from train.tasks.base import Answers, Batch, Metric, Output, Samples, Unlabelled
from train.tasks.language import tokens
from train.tasks.language.classifier import Labels
from train.tasks.language.prepared import LabelledTask, Sets, TokenSet
from train.tasks.sources import files, hub

DEFAULT_MODEL = "bert-base-cased"
KEYS = ("index", "id")  # columns of files without labels
HUB_SET = "nyu-mll/glue"


class Part(NamedTuple):
    """The names of one set of samples."""

    file: str  # in GLUE's own folder
    split: str  # on the Hub


TRAIN = Part("train.tsv", "train")
DEV = Part("dev.tsv", "validation")


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
    # All sets: "train", "valid" if there is one main evaluation set, and others by their names.
    parts: Mapping[str, Part] = field(default_factory=lambda: {"train": TRAIN, "valid": DEV})
    pad_multiple: int = 1  # samples are padded to a multiple of it
    scores: tuple[float, float] = (-math.inf, math.inf)  # the lowest and the highest
    # Sets without labels, each by the name that GLUE's site gives to the file of predictions.
    tests: Mapping[str, Part] = field(default_factory=dict)


class Examples(NamedTuple):
    """n samples as text."""

    texts: tuple[list[str], ...]  # one or two columns of n
    labels: list[float]  # n: class numbers in GLUE's order, or scores


class GlueTask(LabelledTask):
    """One of GLUE's nine tasks, or a similar task, as `spec` describes it."""

    def __init__(self, spec: Spec, config: TrainConfig, model: str = DEFAULT_MODEL) -> None:
        self.spec = self.labels = spec
        self.pad_multiple, self.hub_name = spec.pad_multiple, spec.hub or (HUB_SET, spec.name)
        super().__init__(config, model)

    def _tokenised(self, tokenizer: Any) -> tuple[Sets, dict[str, Any]]:
        sets = {}
        for name in self.spec.parts:
            examples = self._read(name)
            sets[name] = tokens.encode(tokenizer, examples.texts, self.config.max_seq_length)
            kind = torch.float32 if self.spec.is_regression else torch.int64
            sets[name]["label"] = torch.tensor(examples.labels, dtype=kind)
        return sets, {}

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        """The mean loss, and logits (n, labels) in GLUE's order of labels."""
        logits, labels = self.logits(model, batch), batch["labels"]
        if self.spec.is_regression:
            return Output(mse_loss(logits.squeeze(-1), labels.to(logits.dtype)), logits)
        return Output(cross_entropy(logits, labels), logits)

    def metric(self, evaluation_set: Samples) -> Metric:
        if self.spec.is_regression:
            return Correlation(len(evaluation_set))
        return Confusion(self.spec.num_labels, self.spec.metrics)

    def predictions(self, logits: Tensor, labels: Tensor) -> tuple[Answers, Answers]:
        """The labels' numbers (n,), or the scores (n,)."""
        if self.spec.is_regression:
            return logits.reshape(len(labels)), labels
        return super().predictions(logits, labels)

    def unlabelled(self) -> dict[str, Unlabelled]:
        """The unlabelled sets that exist.

        Raises:
            UsageError: there is none, or a file is wrong.
        """
        tests = self.spec.tests
        if not tests:
            raise UsageError(f"--predict: --task {self.config.task} has no unlabelled sets")
        if self.data_dir is None:
            return {name: self._unlabelled_of_hub(part) for name, part in tests.items()}
        home = self._files["train"][0].parent
        paths = {name: home / part.file for name, part in tests.items()}
        sets = {
            name: read_unlabelled(self.spec, path) for name, path in paths.items() if path.is_file()
        }
        if not sets:
            known = " and ".join(part.file for part in tests.values())
            raise UsageError(f"--predict: {home} has no {known}, the unlabelled samples")
        return sets

    def _unlabelled_of_hub(self, part: Part) -> Unlabelled:
        rows = hub.rows(*self.hub_name, split=part.split)
        columns = [list(rows[column]) for column in self.spec.hub_text or self.spec.text]
        return Unlabelled([str(row) for row in range(len(columns[0]))], columns)

    def batch_of(self, unlabelled: Unlabelled, rows: Sequence[int]) -> Batch:
        """Tokenise these rows in the same way as samples with labels."""
        columns = [[column[row] for row in rows] for column in unlabelled.texts]
        length = self.config.max_seq_length
        encoded = TokenSet(tokens.encode(self._loaded_tokenizer, columns, length))
        return self.collate([encoded[at] for at in range(len(rows))])

    def answers(self, logits: Tensor) -> list[str]:
        """The labels as the files spell them, or scores within their range."""
        if self.spec.is_regression:
            return [
                f"{score:.3f}" for score in logits.reshape(-1).clamp(*self.spec.scores).tolist()
            ]
        return [self.spec.labels[number] for number in logits.argmax(-1).tolist()]

    def _source(self) -> Iterator[str | bytes]:
        """The identity of the data and of its meaning: columns, separator, order of labels."""
        yield repr(self.spec)
        yield from super()._source()

    def _read(self, name: str) -> Examples:
        if self.data_dir is None:
            rows = hub.rows(*self.hub_name, split=self.spec.parts[name].split)
            columns = tuple(list(rows[column]) for column in self.spec.hub_text or self.spec.text)
            return Examples(columns, list(rows["label"]))
        return read(self.spec, self._files[name][0])

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        spec = self.spec
        what = f"{spec.name} needs {', '.join(part.file for part in spec.parts.values())}"
        # GLUE's own archive has a folder for each task
        inner = (self.data_dir or Path()) / spec.name.upper()
        what += f"; they are in {inner}" if (inner / spec.parts["train"].file).is_file() else ""
        names = {name: (part.file,) for name, part in spec.parts.items()}
        return {name: [path] for name, path in files.find(self.data_dir, names, what).items()}


def read(spec: Spec, path: Path) -> Examples:
    """Read all labelled examples of one file.

    Raises:
        UsageError: the file is empty, not UTF-8, or has a wrong header, row or label.
    """
    lines = ((number, line) for number, line in files.numbered_lines(path) if line.strip())
    header = list(spec.columns or next(lines, (1, ""))[1].split("\t"))
    if missing := [column for column in (*spec.text, spec.label) if column not in header]:
        raise UsageError(
            f"{path}:1: the header has no {', '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, header))}"
        )
    at = [header.index(column) for column in (*spec.text, spec.label)]
    is_tabbed = spec.separator == "\t"
    rows: list[list[str]] = []
    labels: list[float] = []
    skipped = 0
    for number, line in lines:
        # no quoting: sentences contain unpaired quotes
        fields = line.split("\t") if is_tabbed else line.rsplit(spec.separator, len(header) - 1)
        if number == 1 and spec.columns is not None and fields == header:
            continue
        if len(fields) < len(header) and spec.short_rows:
            skipped += 1
            continue
        if len(fields) != len(header):
            raise UsageError(
                f"{path}:{number}: expected {len(header)} fields between {spec.separator!r} "
                f"({', '.join(header)}), got {len(fields)}"
            )
        rows.append([fields[column] for column in at[:-1]])
        labels.append(label(spec, fields[at[-1]].strip(), f"{path}:{number}"))
    if not rows:
        raise UsageError(f"{path}: no examples in it")
    if skipped:
        logging.getLogger(__name__).warning(
            "%s: left out %d incomplete rows, kept %d", path, skipped, len(rows)
        )
    return Examples(tuple(list(column) for column in zip(*rows, strict=True)), labels)


def read_unlabelled(spec: Spec, path: Path) -> Unlabelled:
    """Read all rows of a file without labels, which has a header.

    Their keys come from the column `index` or `id`, or else are their numbers from 0.

    Raises:
        UsageError: the file is empty, not UTF-8, or has a wrong header or row.
    """
    files.refuse_stand_in(path)
    lines = ((number, line) for number, line in files.numbered_lines(path) if line.strip())
    header = next(lines, (1, ""))[1].split("\t")
    if missing := [column for column in spec.text if column not in header]:
        raise UsageError(
            f"{path}:1: the header has no {', '.join(map(repr, missing))}; "
            f"it has {', '.join(map(repr, header))}"
        )
    rows: list[list[str]] = []
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) != len(header):
            raise UsageError(
                f"{path}:{number}: expected {len(header)} fields between '\\t' "
                f"({', '.join(header)}), got {len(fields)}"
            )
        rows.append(fields)
    if not rows:
        raise UsageError(f"{path}: no examples in it")
    key = next((header.index(name) for name in KEYS if name in header), None)
    keys = [str(number) if key is None else row[key] for number, row in enumerate(rows)]
    return Unlabelled(keys, [[row[header.index(name)] for row in rows] for name in spec.text])


def label(spec: Spec, text: str, where: str) -> float:
    """The number for a file's `text`: a class, or a score.

    Raises:
        UsageError: it is not a label of the task, or not a number; the message begins with `where`.
    """
    try:
        if spec.is_regression and math.isfinite(score := float(text)):
            return score
        return spec.labels.index(text)
    except ValueError:
        what = f"unknown label {text!r}; expected one of {', '.join(spec.labels)}"
        what = f"expected a number as the score, got {text!r}" if spec.is_regression else what
        raise UsageError(f"{where}: {what}") from None
