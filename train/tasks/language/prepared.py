"""Shared by tasks on text: a model, its tokenizer, and a cache that is made once for all ranks."""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.tasks.base import Batch, Datasets, Samples, Task, in_float32
from train.tasks.language import classifier, tokens
from train.tasks.sources import cache


class TokenSet:
    """The samples of one cached set."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        tokens = dict(tensors)
        self._label = tokens.pop("label", None)
        self._offsets = tokens.pop("offsets")
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sample: int64 (n,)."""
        return self._offsets.long().diff()

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One example of t tokens: "input_ids" and other values of each token, (t,).

        It also has either "labels", tags (t,), or "label", a class number or a score.
        """
        start = int(self._offsets[index])
        end = int(self._offsets[index + 1])
        sample: dict[str, Any] = {
            key: flat[start:end].tolist() for key, flat in self._tokens.items()
        }
        return sample if self._label is None else {**sample, "label": self._label[index].item()}


Sets = Mapping[str, Mapping[str, Tensor]]  # by their names


class PreparedTask(Task):
    """A task that tokenises its text into the cache.

    `model` and `tokenizer` come from the settings, or else from the arguments; by default the
    tokenizer is the one in the model's folder.
    """

    pad_multiple = 1  # the longest sample is padded to a multiple of it
    is_ready = False  # whether samples are read without the cache
    hub_name: tuple[str, ...] = ()  # of the data, if no files are given

    def __init__(self, config: TrainConfig, model: str, tokenizer: str | None = None) -> None:
        self.config = config
        self.data_dir = config.data_dir
        self.model = config.model or model
        is_configuration = classifier.is_configuration(self.model)
        home = str(Path(self.model).parent) if is_configuration else self.model
        self.tokenizer = config.tokenizer or tokenizer or home
        self.is_fresh = is_configuration
        if config.pad == "max_length":
            self.pad_multiple = config.max_seq_length

    def is_prepared(self) -> bool:
        """Whether this process sees the whole cache."""
        try:
            return self.is_ready or cache.is_whole(self._cache)
        except UsageError:
            return False  # `prepare` will report why

    def prepare(self) -> None:
        """Tokenise all sets into the cache, unless this is already done.

        Raises:
            UsageError: data, model or tokenizer are missing or do not fit each other.
        """
        classifier.check_length(self.model, self._model_config, self.config.max_seq_length)
        if self.is_ready:
            return
        tokenizer = self._loaded_tokenizer
        classifier.check_tokenizer(self.model, self._model_config, tokenizer)
        if not cache.is_whole(self._cache):
            sets, facts = self._tokenised(tokenizer)
            for tensors in sets.values():
                tokens.refuse_unknown(tokenizer, self.tokenizer, tensors["input_ids"])
            cache.write(self._cache, {"sets": sets, **facts})

    @abstractmethod
    def _tokenised(self, tokenizer: Any) -> tuple[Sets, dict[str, Any]]:
        """All sets as they are cached, each with its `input_ids`, and facts about them."""

    def build_datasets(self) -> Datasets:
        """The sets `train` and `valid`, and any others by their names."""
        sets = self.sets()
        train, valid = sets.pop("train"), sets.pop("valid", None)
        return Datasets(train, sets if valid is None else {"": valid, **sets})

    def sets(self) -> dict[str, Samples]:
        """The samples of each set, by its name."""
        return {name: TokenSet(tensors) for name, tensors in self._cached["sets"].items()}

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
            for path in paths:
                yield cache.sum_of(self.config.cache_dir, path)

    def lengths(self, samples: Samples) -> Tensor | None:
        """The number of tokens of each sample, rounded up to a multiple of `pad_multiple`."""
        if not isinstance(samples, TokenSet):
            return None
        return -(-samples.lengths // self.pad_multiple) * self.pad_multiple

    def tokens(self) -> Any | None:
        return self._loaded_tokenizer

    @cached_property
    def _loaded_tokenizer(self) -> Any:
        tokenizer = tokens.load(self.tokenizer, self.config.lower_case)
        if tokenizer.pad_token_id is None and tokenizer.eos_token is not None:  # as for GPT-2
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    @cached_property
    def _model_config(self) -> Any:
        return classifier.load_config(self.model)

    @cached_property
    def _cache(self) -> Path:
        """The cache for exactly this data, tokenizer and length."""
        identity = tokens.identity(self._loaded_tokenizer)
        parts = [*self._source(), identity, str(self.config.max_seq_length)]
        return cache.path_for(self.config.cache_dir, self.config.task, parts)

    @cached_property
    def _cached(self) -> dict[str, Any]:
        return cache.read(self._cache)


class LabelledTask(PreparedTask):
    """A task whose model gives one of a few labels to a text or to each word."""

    labels: classifier.Labels
    _label_order: list[int] | None = None  # of the model's outputs, if it differs
    collator = "WithPadding"  # transformers' name for it
    takes_new_head = True
    # The parts of a batch that the model's `forward` takes; by default, those for a custom model.
    _inputs: Collection[str] = ("input_ids", "attention_mask")

    def prepare(self) -> None:
        """Tokenise all sets into the cache; the model must fit the labels of the task.

        Raises:
            UsageError: data, model or tokenizer are missing or do not fit each other.
        """
        super().prepare()  # first, because a tagger's labels come from its text
        self._set_labels()

    def build_model(self) -> nn.Module:
        """The model on the CPU in float32."""
        config = self._model_config
        self._label_order = self._set_labels()
        tokenizer = self._loaded_tokenizer
        # GPT-2, Llama and others look for the last token of a text that is not padding.
        if config.pad_token_id is None or tokenizer.pad_token == tokenizer.eos_token:
            config.pad_token_id = tokenizer.pad_token_id
        import transformers

        kind = getattr(transformers, f"AutoModelFor{self.labels.head}")
        new_head = self.config.new_head
        model = classifier.build(self.model, config, self.is_fresh, kind, new_head=new_head)
        # DistilBERT has no token types; wrappers such as DDP do not name the inputs they pass on.
        self._inputs = signature(model.forward).parameters.keys() - {"labels"}
        return model

    def _set_labels(self) -> list[int] | None:
        own_head = self.is_fresh or self.config.new_head
        return classifier.set_labels(self.model, self._model_config, self.labels, own_head)

    def collate(self, samples: Sequence[Any]) -> Batch:
        """n samples with the tokenizer's padding: int64 (n, width) each, and labels (n,).

        If tokens have labels, these are (n, width), with -100 for padding.
        """
        import transformers

        kind: Any = getattr(transformers, f"DataCollator{self.collator}")
        return dict(kind(self._loaded_tokenizer, pad_to_multiple_of=self.pad_multiple)(samples))

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """The model's output for `batch`, (n, ..., labels) in the task's order of labels."""
        inputs = {key: tensor for key, tensor in batch.items() if key in self._inputs}
        scores: Tensor = model(**inputs).logits
        return in_float32(scores if self._label_order is None else scores[..., self._label_order])
