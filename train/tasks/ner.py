"""Named-entity recognition: a tag for every word, on sets in CoNLL-2003's form."""

from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from configs.settings.train import TrainConfig
from train.tasks.base import Answers, Batch, Datasets, Metric, Output, Samples
from train.tasks.language import classifier
from train.tasks.language.classifier import Labels
from train.tasks.language.prepared import LabelledTask, Sets, TokenSet
from train.tasks.sources import cache, hub
from train.tasks.tagging import conll, encoding
from train.tasks.tagging.conll import Sentence
from train.tasks.tagging.entities import Entities

DEFAULT_MODEL = "bert-base-cased"
# The set itself is a script, which `datasets` runs no more; this is the Hub's own copy of its rows.
HUB_REVISION = "refs/convert/parquet"
HUB_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


class Ner(LabelledTask):
    """Word pieces with the tag of each word on its first; the loss is a mean over words."""

    has_tags = True
    hub_name = ("eriktks/conll2003",)

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config, DEFAULT_MODEL)

    def prepare(self) -> None:
        """Tokenise all sets into the cache; the tags that there are decide on the model.

        Raises:
            UsageError: data, model or tokenizer are missing or do not fit each other.
        """
        encoding.check(self._loaded_tokenizer, self.tokenizer)
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
            name: encoding.encode(tokenizer, name, sentences, tags, length)
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
        return (batch["labels"] != encoding.IGNORED).sum().double().reshape(1)

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        """The mean loss over words, (1,), and logits (n, width, tags) in our order of tags."""
        logits, labels = self.logits(model, batch), batch["labels"].flatten()
        total = cross_entropy(
            logits.flatten(0, 1), labels, ignore_index=encoding.IGNORED, reduction="sum"
        )
        words = (labels != encoding.IGNORED).sum().clamp(min=1)
        return Output((total / words).reshape(1), logits)

    def metric(self, evaluation_set: Samples) -> Metric:
        return Entities(self._tags)

    def predictions(self, logits: Tensor, labels: Tensor) -> tuple[Answers, Answers]:
        """The tags of each sentence's words by name, as seqeval takes them."""
        answers: tuple[list[list[str]], list[list[str]]] = ([], [])
        for predicted, gold in zip(logits.argmax(-1), labels, strict=True):
            words = gold != encoding.IGNORED
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


build = Ner
