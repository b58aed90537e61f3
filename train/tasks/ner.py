"""Named-entity recognition: a tag for every word, on sets in CoNLL-2003's form."""

import logging
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from seqeval.metrics.sequence_labeling import get_entities
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.tasks.base import Answers, Batch, Datasets, Metric, Output, Samples
from train.tasks.language import classifier, tokens
from train.tasks.language.classifier import Labels
from train.tasks.language.prepared import LabelledTask, Sets, TokenSet
from train.tasks.sources import cache, hub
from train.tasks.tagging import conll
from train.tasks.tagging.conll import Sentence

IGNORED = -100  # the tag of other pieces than a word's first, and of padding
TRUE, PREDICTED, GOLD = range(3)
DEFAULT_MODEL = "bert-base-cased"
# The original set is a script, which `datasets` no longer runs; this is the Hub's copy of its rows.
HUB_REVISION = "refs/convert/parquet"
HUB_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


class Entities:
    """Counts of entities by type: correct, predicted, and in the references.

    seqeval decides what an entity is, in IOB1 and IOB2; it is correct if type, beginning and end
    are right.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags = tags
        self._types = sorted({tag[2:] for tag in tags if tag != "O"})
        self.state = torch.zeros(len(self._types), 3, dtype=torch.float64)

    def update(self, logits: Tensor, labels: Tensor, positions: Tensor) -> None:
        """Count n sentences: logits (n, pieces, tags), labels (n, pieces) with `IGNORED`."""
        for predicted, gold in zip(logits.argmax(-1), labels, strict=True):
            words = gold != IGNORED
            self.count(predicted[words].tolist(), gold[words].tolist())

    def count(self, predicted: Sequence[int], gold: Sequence[int]) -> None:
        """Count one sentence, a tag's number per word."""
        found, wanted = (
            set(get_entities([self._tags[tag] for tag in tags])) for tags in (predicted, gold)
        )
        for column, some in ((TRUE, found & wanted), (PREDICTED, found), (GOLD, wanted)):
            for kind, _, _ in some:
                self.state[self._types.index(kind), column] += 1

    def compute(self) -> dict[str, float]:
        """Over all entities, and F1 of each type, such as `f1_LOC`."""
        precision, recall, f1 = _scores(self.state.sum(0))
        each = {
            f"f1_{kind}": _scores(row)[2] for kind, row in zip(self._types, self.state, strict=True)
        }
        return {"precision": precision, "recall": recall, "f1": f1, **each}


def _scores(counts: Tensor) -> tuple[float, float, float]:
    """Precision, recall and F1; 0 if there is nothing to count."""
    true, predicted, gold = counts.tolist()
    return (
        true / predicted if predicted else 0.0,
        true / gold if gold else 0.0,
        2 * true / (predicted + gold) if predicted + gold else 0.0,
    )


class Ner(LabelledTask):
    """Word pieces; the first one of each word has the word's tag. The loss is a mean over words."""

    has_tags = True
    hub_name = ("eriktks/conll2003",)

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config, DEFAULT_MODEL)

    def prepare(self) -> None:
        """Tokenise all sets into the cache; the tags that there are decide on the model.

        Raises:
            UsageError: data, model or tokenizer are missing or do not fit each other.
        """
        _require_fast(self._loaded_tokenizer, self.tokenizer)
        super().prepare()
        config = classifier.load_config(self.model, self.labels, self.is_fresh)
        length = self.config.max_seq_length
        classifier.check(self.model, config, self._loaded_tokenizer, length)

    def _tokenised(self, tokenizer: Any) -> tuple[Sets, dict[str, Any]]:
        read = self._read()
        tags, length = conll.tags_of(read["train"]), self.config.max_seq_length
        for name in read if self.data_dir is not None else ():
            conll.refuse_unknown(self._files[name][0], read[name], tags)
        sets = {
            name: _encode(tokenizer, name, sentences, tags, length)
            for name, sentences in read.items()
        }
        return sets, {"tags": tags}

    def build_datasets(self) -> Datasets:
        names = cache.facts(self._cache)["sets"]
        sets = {name: TokenSet(cache.read(self._cache, name)) for name in names}
        train, valid = sets.pop("train"), sets.pop("valid")
        return Datasets(train, {"": valid, **sets})

    def units(self, batch: Batch) -> Tensor:
        """The words of the batch, (1,)."""
        return (batch["labels"] != IGNORED).sum().double().reshape(1)

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        """The mean loss over words, (1,), and logits (n, width, tags) in our order of tags."""
        logits, labels = self.logits(model, batch), batch["labels"].flatten()
        total = cross_entropy(logits.flatten(0, 1), labels, ignore_index=IGNORED, reduction="sum")
        words = (labels != IGNORED).sum().clamp(min=1)
        return Output((total / words).reshape(1), logits)

    def metric(self, evaluation_set: Samples) -> Metric:
        return Entities(self._tags)

    def predictions(self, logits: Tensor, labels: Tensor) -> tuple[Answers, Answers]:
        """The tags of each sentence's words by name, in seqeval's form."""
        answers: tuple[list[list[str]], list[list[str]]] = ([], [])
        for predicted, gold in zip(logits.argmax(-1), labels, strict=True):
            words = gold != IGNORED
            for column, tags in zip(answers, (predicted, gold), strict=True):
                column.append([self._tags[tag] for tag in tags[words].tolist()])
        return answers

    def _read(self) -> dict[str, list[Sentence]]:
        if self.data_dir is not None:
            return {name: conll.read(path) for name, (path,) in self._files.items()}
        return {name: _of_hub(split) for name, split in HUB_SPLITS.items()}

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        return conll.find(self.data_dir)

    @cached_property
    def _tags(self) -> list[str]:
        return list(cache.facts(self._cache)["tags"])

    @cached_property
    def labels(self) -> Labels:
        tags = tuple(self._tags)
        return Labels(name="the training set", labels=tags, head="TokenClassification")


def _of_hub(split: str) -> list[Sentence]:
    rows = hub.rows(*Ner.hub_name, revision=HUB_REVISION, split=split)
    names = rows.features["ner_tags"].feature.names
    return [
        Sentence(list(row["tokens"]), [names[tag] for tag in row["ner_tags"]], line=0)
        for row in rows
        if row["tokens"]
    ]


def _require_fast(tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer that cannot tell to which word a piece belongs.

    Raises:
        UsageError: it is not one of the fast ones.
    """
    if not tokenizer.is_fast:
        raise UsageError(
            f"--tokenizer {name} has no fast form, which alone tells the word of each piece; "
            "give another, such as bert-base-cased"
        )


def _encode(
    tokenizer: Any, name: str, sentences: list[Sentence], tags: list[str], max_seq_length: int
) -> dict[str, Tensor]:
    """The pieces of the n sentences of set `name` in one row, and where each sentence begins.

    Returns:
        input_ids, labels and, if the tokenizer makes them, token_type_ids: int32 (all pieces,);
        labels are numbers in `tags`, or `IGNORED`; offsets: int64 (n + 1,), sentence i is
        [offsets[i], offsets[i + 1]).
    """
    numbers = {tag: number for number, tag in enumerate(tags)}

    def add_tags(encoded: Any, start: int) -> dict[str, list[list[int]]]:
        part = enumerate(sentences[start : start + tokens.BATCH])
        return {"labels": [_of_first_pieces(encoded.word_ids(r), one, numbers) for r, one in part]}

    words = [[sentence.words for sentence in sentences]]
    found = tokens.encode(tokenizer, words, max_seq_length, add_tags, is_split_into_words=True)
    lost = sum(len(sentence.words) for sentence in sentences)
    lost -= int((found["labels"] != IGNORED).sum())
    if lost:
        logging.getLogger(__name__).warning(
            "%s set: %d words are beyond --max-seq-length %d, or nothing but control characters; "
            "they are left out of training and scores",
            name,
            lost,
            max_seq_length,
        )
    return found


def _of_first_pieces(
    words: list[int | None], sentence: Sentence, numbers: dict[str, int]
) -> list[int]:
    """The tag of each piece that begins a word; `words` has the word of each piece."""
    return [
        IGNORED if word is None or word == before else numbers[sentence.tags[word]]
        for before, word in pairwise([None, *words])
    ]


build = Ner
