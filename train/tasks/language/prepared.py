"""Shared by tasks on text: a model, its tokenizer, and a cache that is made once for all ranks."""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.tasks.base import Batch, Samples, Task, in_float32
from train.tasks.language import classifier, tokens
from train.tasks.sources import cache

# One example of t tokens: "input_ids", other values of each token (t,), and tags as "labels"; or
# "label", a class number or a score.
Sample = dict[str, Any]


class TokenSet:
    """The samples of one cached set."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        tokens = dict(tensors)
        self._label = tokens.pop("label", None)
        self._offsets: list[int] = tokens.pop("offsets").tolist()
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sample: int64 (n,)."""
        return torch.tensor(self._offsets).diff()

    def __getitem__(self, index: int) -> Sample:
        start, end = self._offsets[index], self._offsets[index + 1]
        sample: Sample = {key: flat[start:end].tolist() for key, flat in self._tokens.items()}
        return sample if self._label is None else {**sample, "label": self._label[index].item()}


def collator(
    tokenizer: Any, width: int | None, multiple: int, *, tags: bool = False
) -> Callable[[Sequence[Sample]], Batch]:
    """A function that makes a batch, padded like `tokenizer`: int64 (n, width), and labels (n,).

    `width` None: that of the longest sample, rounded up to a `multiple`. With `tags`, tokens have
    labels.
    """
    from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding

    kind = DataCollatorForTokenClassification if tags else DataCollatorWithPadding
    if width is None:
        pad = kind(tokenizer, padding="longest", pad_to_multiple_of=multiple)
    else:
        pad = kind(tokenizer, padding="max_length", max_length=width)
    return lambda samples: dict(pad(samples))


Sets = Mapping[str, Mapping[str, Tensor]]  # by their names


class PreparedTask(Task):
    """A task that tokenises its text into the cache.

    `model` and `tokenizer` come from the settings, or else from the arguments; by default the
    tokenizer is the one in the model's folder.
    """

    pad_multiple = 1  # the longest sample is padded to a multiple of it
    has_tags = False  # whether tokens have labels
    is_ready = False  # whether samples are read without the cache
    hub_name: tuple[str, ...] = ()  # of the data, where no files are given

    def __init__(self, config: TrainConfig, model: str, tokenizer: str | None = None) -> None:
        self.config = config
        self.data_dir = config.data_dir
        self.model = config.model or model
        self.tokenizer = config.tokenizer or tokenizer or _home(self.model)
        self.is_fresh = config.random_weights or classifier.is_configuration(self.model)

    def is_prepared(self) -> bool:
        """Whether this process sees the whole cache."""
        try:
            return self.is_ready or cache.is_whole(self._cache)
        except UsageError:
            return False  # `prepare` says why

    def prepare(self) -> None:
        """Tokenise all sets into the cache, unless it is done already.

        Raises:
            UsageError: data, model or tokenizer are missing or do not fit each other.
        """
        if not cache.is_whole(self._cache):
            sets, facts = self._tokenised(self._loaded_tokenizer)
            for one in sets.values():
                tokens.refuse_unknown(self._loaded_tokenizer, self.tokenizer, one["input_ids"])
            cache.write(self._cache, sets, **facts)

    @abstractmethod
    def _tokenised(self, tokenizer: Any) -> tuple[Sets, dict[str, Any]]:
        """All sets as the cache holds them, each with its `input_ids`; and facts of them."""

    @cached_property
    @abstractmethod
    def _files(self) -> dict[str, list[Path]]:
        """The files of each set in the folder that --data-dir names."""

    def _source(self) -> Iterator[str | bytes]:
        """The identity of the data: all of its files, or its name on the Hub."""
        if self.data_dir is None and self.hub_name:
            yield " ".join(self.hub_name)
            return
        for name, paths in self._files.items():
            yield name
            for path in paths:  # not all in memory at once: they may be large
                with path.open("rb") as file:
                    yield hashlib.file_digest(file, "sha256").digest()

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
        import transformers

        kind = getattr(transformers, f"AutoModelFor{self.labels.head}")
        return classifier.build(self.model, config, self.is_fresh, kind)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """The model's output for `batch`, (n, ..., labels) in the task's order of labels."""
        found: Tensor = model(**classifier.inputs(model, batch)).logits
        return in_float32(found if self._label_order is None else found[..., self._label_order])


def _home(model: str) -> str:
    """The place of the tokenizer of `model`: with it, or next to its config.json."""
    return str(Path(model).parent) if classifier.is_configuration(model) else model
