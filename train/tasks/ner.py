"""Named-entity recognition: a tag for every word, on sets in CoNLL-2003's form."""

from collections.abc import Iterator
from functools import cached_property

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from configs.settings.train import TrainConfig
from train.tasks.base import Answers, Batch, Datasets, Metric, Output, Samples
from train.tasks.language import classifier, tokens
from train.tasks.language.classifier import Labels
from train.tasks.language.padding import TokenSet
from train.tasks.language.prepared import LabelledTask
from train.tasks.sources import cache, hub
from train.tasks.tagging import conll, encoding
from train.tasks.tagging.conll import Sentence
from train.tasks.tagging.entities import Entities

DEFAULT_MODEL = "bert-base-cased"
# The original set is a script, which `datasets` no longer runs; this is the Hub's copy of its rows.
HUB_SET, HUB_REVISION = "eriktks/conll2003", "refs/convert/parquet"
HUB_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


class Ner(LabelledTask):
    """Word pieces; the first one of each word has the word's tag. The loss is a mean over words."""

    has_tags = True

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config, DEFAULT_MODEL)

    def prepare(self) -> None:
        """Tokenise all sets into the cache, unless it is done already.

        Raises:
            UsageError: data, model or tokenizer are missing or do not fit each other.
        """
        tokenizer = self._loaded_tokenizer
        encoding.check(tokenizer, self.tokenizer)
        if not cache.is_whole(self._cache):
            read = self._read()
            tags = conll.tags_of(read["train"])
            sets = {}
            for name, sentences in read.items():
                if self.data_dir is not None:
                    conll.refuse_unknown(conll.find(self.data_dir)[name], sentences, tags)
                length = self.config.max_seq_length
                sets[name] = encoding.encode(tokenizer, name, sentences, tags, length)
                tokens.refuse_unknown(tokenizer, self.tokenizer, sets[name]["input_ids"])
            cache.write(self._cache, sets, tags=tags)
        config = classifier.load_config(self.model, self.labels, self.is_fresh)
        classifier.check(self.model, config, tokenizer, self.config.max_seq_length)

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
        """The tags of each sentence's words by name, in seqeval's form."""
        answers: tuple[list[list[str]], list[list[str]]] = ([], [])
        for predicted, gold in zip(logits.argmax(-1), labels, strict=True):
            words = gold != encoding.IGNORED
            for column, tags in zip(answers, (predicted, gold), strict=True):
                column.append([self._tags[tag] for tag in tags[words].tolist()])
        return answers

    def _read(self) -> dict[str, list[Sentence]]:
        if self.data_dir is not None:
            return {name: conll.read(path) for name, path in conll.find(self.data_dir).items()}
        return {name: _of_hub(split) for name, split in HUB_SPLITS.items()}

    def _source(self) -> Iterator[str | bytes]:
        if self.data_dir is None:
            yield HUB_SET
            return
        for name, path in conll.find(self.data_dir).items():
            yield name
            yield path.read_bytes()

    @cached_property
    def _tags(self) -> list[str]:
        return list(cache.facts(self._cache)["tags"])

    @cached_property
    def labels(self) -> Labels:
        tags = tuple(self._tags)
        return Labels(name="the training set", labels=tags, head="TokenClassification")


def _of_hub(split: str) -> list[Sentence]:
    rows = hub.rows(HUB_SET, revision=HUB_REVISION, split=split)
    names = rows.features["ner_tags"].feature.names
    return [
        Sentence(list(row["tokens"]), [names[tag] for tag in row["ner_tags"]], line=0)
        for row in rows
        if row["tokens"]
    ]


build = Ner
