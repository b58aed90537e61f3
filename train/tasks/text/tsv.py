"""Read GLUE's own files as examples; a wrong row is refused with its file and line."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from muster.errors import UsageError
from train.tasks.language.classifier import Labels
from train.tasks.sources import files
from train.tasks.sources.files import numbered_lines

HUB_SET = "nyu-mll/glue"


class Part(NamedTuple):
    """The names of one set of samples."""

    file: str  # in GLUE's own folder
    split: str  # on the Hub


TRAIN = Part("train.tsv", "train")
PARTS = MappingProxyType({"train": TRAIN, "dev": Part("dev.tsv", "validation")})


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
    # All sets by their names in the cache: that for training, then one for each of its evaluation
    # sets, with the name of it behind "dev_", if it has one.
    parts: Mapping[str, Part] = field(default_factory=lambda: PARTS)
    pad_multiple: int = 1  # samples are padded to a multiple of it

    @property
    def hub_name(self) -> tuple[str, ...]:
        """The Hub's name of the set, and of its configuration."""
        return self.hub or (HUB_SET, self.name)


class Examples(NamedTuple):
    """n samples as text."""

    texts: tuple[list[str], ...]  # one or two columns of n
    labels: list[float]  # n: class numbers in GLUE's order, or scores


def find(spec: Spec, folder: Path | None) -> dict[str, list[Path]]:
    """The file of each part of `spec` in `folder`.

    Raises:
        UsageError: the folder or a file is missing; the message names what is expected.
    """
    names = {name: (part.file,) for name, part in spec.parts.items()}
    what = f"{spec.name} is read from {', '.join(part.file for part in spec.parts.values())}"
    inner = (folder or Path()) / spec.name.upper()  # GLUE's own archive has a folder for each task
    what += f"; they are in {inner}" if (inner / spec.parts["train"].file).is_file() else ""
    return {name: [path] for name, path in files.find(folder, names, what).items()}


def read(spec: Spec, path: Path) -> Examples:
    """All labelled examples of one file.

    Raises:
        UsageError: the file is empty, not UTF-8, or holds a wrong header, row or label.
    """
    lines = ((number, line) for number, line in numbered_lines(path) if line.strip())
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
            "%s: left out %d rows that lack fields, kept %d", path, skipped, len(rows)
        )
    return Examples(tuple(list(column) for column in zip(*rows, strict=True)), labels)


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
        what = f"unknown label {text!r}; known: {', '.join(spec.labels)}"
        what = f"expected a number as score, got {text!r}" if spec.is_regression else what
        raise UsageError(f"{where}: {what}") from None
