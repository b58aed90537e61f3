"""Shared by tasks on text: a model, its tokenizer, and a cache that is made once for all ranks."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.tasks.base import Batch, Samples, Task, in_float32
from train.tasks.language import classifier, tokens
from train.tasks.language.padding import Sample, TokenSet, collator
from train.tasks.sources import cache


class PreparedTask(Task):
    """A task that tokenises its text into the cache.

    `model` and `tokenizer` come from the settings, or else from the arguments; by default the
    tokenizer is the one in the model's folder.
    """

    pad_multiple = 1  # the longest sample is padded to a multiple of it
    has_tags = False  # whether tokens have labels

    def __init__(self, config: TrainConfig, model: str, tokenizer: str | None = None) -> None:
        self.config = config
        self.data_dir = config.data_dir
        self.model = config.model or model
        self.tokenizer = config.tokenizer or tokenizer or _home(self.model)
        self.is_fresh = config.random_weights or classifier.is_configuration(self.model)

    def is_prepared(self) -> bool:
        """Whether this process sees the whole cache."""
        try:
            return cache.is_whole(self._cache)
        except UsageError:
            return False  # `prepare` says why

    @abstractmethod
    def _source(self) -> Iterator[str | bytes]:
        """The identity of the data: all of its files, or its name on the Hub."""

    @property
    def _width(self) -> int | None:
        """The width to pad to; None: that of the batch's longest sample."""
        return self.config.max_seq_length if self.config.pad == "max_length" else None

    def lengths(self, samples: Samples) -> Tensor | None:
        """The lengths of tokenised text, unless all of it is padded to --max-seq-length."""
        if self._width is not None or not isinstance(samples, TokenSet):
            return None
        return -(-samples.lengths // self.pad_multiple) * self.pad_multiple

    def collate(self, samples: Sequence[Any]) -> Batch:
        """n samples as int64 (n, width) each, and labels (n,).

        If tokens have labels, they are (n, width), and -100 for padding.
        """
        return self._collator(samples)

    def tokens(self) -> Any | None:
        return self._loaded_tokenizer

    @cached_property
    def _collator(self) -> Callable[[Sequence[Sample]], Batch]:
        return collator(self._loaded_tokenizer, self._width, self.pad_multiple, tags=self.has_tags)

    @cached_property
    def _loaded_tokenizer(self) -> Any:
        return tokens.load(self.tokenizer, self.config.lower_case)

    @cached_property
    def _cache(self) -> Path:
        """The cache for exactly this data, tokenizer and length."""
        identity = tokens.identity(self._loaded_tokenizer)
        parts = [*self._source(), identity, str(self.config.max_seq_length)]
        return cache.place(self.config.cache_dir, self.config.task, parts)


class LabelledTask(PreparedTask):
    """A task whose model gives one of a few labels to a text or to each word."""

    _label_order: list[int] | None = None  # of the model's outputs, if it differs

    @property
    @abstractmethod
    def labels(self) -> classifier.Labels: ...

    def build_model(self) -> nn.Module:
        """The model on the CPU in float32."""
        config = classifier.load_config(self.model, self.labels, self.is_fresh)
        self._label_order = classifier.label_order(config, self.labels)
        return classifier.build(self.model, config, self.is_fresh, self.labels.model_class)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """The model's output for `batch`, (n, ..., labels) in the task's order of labels."""
        found: Tensor = model(**classifier.inputs(model, batch)).logits
        return in_float32(found if self._label_order is None else found[..., self._label_order])


def _home(model: str) -> str:
    """The place of the tokenizer of `model`: with it, or next to its config.json."""
    return str(Path(model).parent) if classifier.is_configuration(model) else model
