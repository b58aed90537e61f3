"""Named-entity recognition: a tag for every word, on sets in CoNLL-2003's format."""

import logging
import re
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from seqeval.metrics.sequence_labeling import get_entities
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.tasks.base import Answers, Batch, Metric, Output, Samples
from train.tasks.language import tokens
from train.tasks.language.classifier import Labels
from train.tasks.language.prepared import LabelledTask, Sets
from train.tasks.language.tokens import IGNORED
from train.tasks.sources import files, hub

OUTSIDE = "O"
TAG = re.compile(r"O|[BI]-\S+")
NAMES = {"train": ("train.txt",), "valid": ("valid.txt", "dev.txt")}  # a test set is optional
TRUE, PREDICTED, GOLD = range(3)
DEFAULT_MODEL = "bert-base-cased"
# The original set is a script, which `datasets` no longer runs; this is the Hub's copy of its rows.
HUB_REVISION = "refs/convert/parquet"
HUB_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


class Sentence(NamedTuple):
    """One sentence of w words."""

    words: list[str]
    tags: list[str]
    line: int  # of its first word


class Entities:
    """Counts of entities by type: correct, predicted, and in the references.

    seqeval determines the entities, in IOB1 and IOB2; an entity is correct if its type, beginning
    and end are right.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags = tags
        self._types = sorted({tag[2:] for tag in tags if tag != "O"})
        self.state = torch.zeros(len(self._types), 3, dtype=torch.float64)

    def update(self, logits: Tensor, labels: Tensor, positions: Tensor) -> None:
        """Count n sentences: logits (n, pieces, tags), labels (n, pieces) with `IGNORED`."""
        for predicted, gold in zip(*by_name(logits, labels, self._tags), strict=True):
            self.count(predicted, gold)

    def count(self, predicted: list[str], gold: list[str]) -> None:
        """Count one sentence, a tag per word."""
        found, wanted = set(get_entities(predicted)), set(get_entities(gold))
        for column, some in ((TRUE, found & wanted), (PREDICTED, found), (GOLD, wanted)):
            for kind, _, _ in some:
                self.state[self._types.index(kind), column] += 1

    def compute(self) -> dict[str, float]:
        """Scores over all entities, and F1 of each type, such as `f1_LOC`; 0 if there are none."""
        true, predicted, gold = torch.cat([self.state, self.state.sum(0, keepdim=True)]).T
        *each, f1 = (2 * true / (predicted + gold).clamp(min=1)).tolist()
        return {
            "precision": (true / predicted.clamp(min=1))[-1].item(),
            "recall": (true / gold.clamp(min=1))[-1].item(),
            "f1": f1,
            **{f"f1_{kind}": score for kind, score in zip(self._types, each, strict=True)},
        }


def by_name(
    logits: Tensor, labels: Tensor, tags: Sequence[str]
) -> tuple[list[list[str]], list[list[str]]]:
    """The predicted and the correct tags of each sentence, from logits (n, pieces, tags)."""
    is_word = labels != IGNORED

    def named(rows: Tensor) -> list[list[str]]:
        words = (row[own].tolist() for row, own in zip(rows, is_word, strict=True))
        return [[tags[number] for number in numbers] for numbers in words]

    return named(logits.argmax(-1)), named(labels)


class Ner(LabelledTask):
    """Tag word pieces: the first piece has its word's tag. The loss is the mean over words."""

    collator = "ForTokenClassification"
    hub_name = ("eriktks/conll2003",)

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config, DEFAULT_MODEL)

    def _tokenised(self, tokenizer: Any) -> tuple[Sets, dict[str, Any]]:
        if not tokenizer.is_fast:
            raise UsageError(
                f"--tokenizer {self.tokenizer} has no fast version, which is needed to find the "
                "word of each token"
                "\ntip: choose another, such as bert-base-cased"
            )
        read = self._read()
        tags, length = tags_of(read["train"]), self.config.max_seq_length
        sets = {}
        for name, sentences in read.items():
            if self.data_dir is not None:
                refuse_unknown(self._files[name][0], sentences, tags)
            words = [sentence.words for sentence in sentences]
            numbers = [[tags.index(tag) for tag in sentence.tags] for sentence in sentences]
            sets[name] = tokens.encode(tokenizer, [words], length, numbers)
            lost = sum(map(len, words)) - int((sets[name]["labels"] != IGNORED).sum())
            if lost:
                logging.getLogger(__name__).warning(
                    f"{name} set: {lost} words are left out of training and scores, because they "
                    f"are beyond --max-seq-length {length} or contain only control characters"
                )
        return sets, {"tags": tags}

    def units(self, batch: Batch) -> Tensor:
        """The number of words in the batch, (1,)."""
        return (batch["labels"] != IGNORED).sum().double().reshape(1)

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        """The mean loss over words, (1,), and logits (n, width, tags) in the task's tag order."""
        logits, labels = self.logits(model, batch), batch["labels"].flatten()
        total = cross_entropy(logits.flatten(0, 1), labels, ignore_index=IGNORED, reduction="sum")
        words = (labels != IGNORED).sum().clamp(min=1)
        return Output((total / words).reshape(1), logits)

    def metric(self, evaluation_set: Samples) -> Metric:
        return Entities(self._tags)

    def predictions(self, logits: Tensor, labels: Tensor) -> tuple[Answers, Answers]:
        """The tags of each sentence's words by name, in seqeval's form."""
        return by_name(logits, labels, self._tags)

    def _read(self) -> dict[str, list[Sentence]]:
        if self.data_dir is not None:
            return {name: read(path) for name, (path,) in self._files.items()}
        return {name: _hub_sentences(split) for name, split in HUB_SPLITS.items()}

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        what = "ner needs train.txt, valid.txt (or dev.txt) and test.txt in CoNLL's format"
        paths = files.find(self.data_dir, NAMES, what)
        test = paths["train"].with_name("test.txt")
        if test.is_file():
            paths["test"] = test
        return {name: [path] for name, path in paths.items()}

    @property
    def _tags(self) -> list[str]:
        return list(self._cached["tags"])

    @property
    def labels(self) -> Labels:  # type: ignore[override]
        tags = tuple(self._tags)
        return Labels(name="the training set", labels=tags, head="TokenClassification")


def read(path: Path) -> list[Sentence]:
    """Read all sentences: each line has a word first and its tag last; blank lines separate them.

    Raises:
        UsageError: the file is empty, not UTF-8, or has a wrong row or tag.
    """
    sentences, columns = list[Sentence](), 0
    # Split only at blanks and tabs: a word may contain other separators, such as a no-break
    # space.
    rows = ((at, re.split(r"[ \t]+", line.strip(" \t"))) for at, line in files.numbered_lines(path))
    for is_between, group in groupby(rows, lambda row: row[1][0] in ("", "-DOCSTART-")):
        if is_between:
            continue
        numbered = list(group)
        columns = columns or max(2, len(numbered[0][1]))
        for number, fields in numbered:
            if len(fields) != columns:
                raise UsageError(
                    f"{path}:{number}: expected {columns} columns, with the word first and its "
                    f"tag last, got {' '.join(fields)[:60]!r}"
                )
            if not TAG.fullmatch(fields[-1]):
                raise UsageError(
                    f"{path}:{number}: expected the tag O, B-TYPE or I-TYPE, got {fields[-1]!r}"
                )
        words, tags = ([fields[column] for _, fields in numbered] for column in (0, -1))
        sentences.append(Sentence(words, tags, line=numbered[0][0]))
    if not sentences:
        raise UsageError(f"{path} contains no sentences")
    return sentences


def tags_of(sentences: list[Sentence]) -> list[str]:
    """The tags that occur, `O` first."""
    tags = {tag for sentence in sentences for tag in sentence.tags} - {OUTSIDE}
    return [OUTSIDE, *sorted(tags, key=lambda tag: (tag[2:], tag))]


def refuse_unknown(path: Path, sentences: list[Sentence], known: list[str]) -> None:
    """Refuse tags that the training file does not have.

    Raises:
        UsageError: there is such a tag; the message names the file and line.
    """
    for sentence in sentences:
        for line, tag in enumerate(sentence.tags, sentence.line):
            if tag not in known:
                it_has = f"the training file has no tag {tag!r}; it has {', '.join(known)}"
                raise UsageError(f"{path}:{line}: {it_has}")


def _hub_sentences(split: str) -> list[Sentence]:
    rows = hub.rows(*Ner.hub_name, revision=HUB_REVISION, split=split)
    names = rows.features["ner_tags"].feature.names
    return [
        Sentence(list(row["tokens"]), [names[tag] for tag in row["ner_tags"]], line=0)
        for row in rows
        if row["tokens"]
    ]


build = Ner
