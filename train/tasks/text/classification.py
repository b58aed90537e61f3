"""A text with one label: prepared once, read by all ranks, and scored by its own metrics."""

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from configs.settings.train import TrainConfig
from train.evaluation.metrics import Confusion, Correlation
from train.tasks.base import Answers, Batch, Datasets, Metric, Output, Samples
from train.tasks.language import classifier, tokens
from train.tasks.language.prepared import LabelledTask, Sets, TokenSet
from train.tasks.sources import cache, hub
from train.tasks.text import tsv
from train.tasks.text.tsv import Examples, Spec

DEFAULT_MODEL = "bert-base-cased"


class GlueTask(LabelledTask):
    """One of GLUE's nine tasks, or another of their kind, as `spec` describes it."""

    def __init__(self, spec: Spec, config: TrainConfig, model: str = DEFAULT_MODEL) -> None:
        super().__init__(config, model)
        self.spec, self.pad_multiple, self.hub_name = spec, spec.pad_multiple, spec.hub_name

    @property
    def labels(self) -> Spec:
        return self.spec

    def prepare(self) -> None:
        """Tokenise all sets into the cache, unless it is done already.

        Raises:
            UsageError: data, model or tokenizer are missing or do not fit each other.
        """
        config = classifier.load_config(self.model, self.spec, self.is_fresh)
        length = self.config.max_seq_length
        classifier.check(self.model, config, self._loaded_tokenizer, length)
        super().prepare()

    def _tokenised(self, tokenizer: Any) -> tuple[Sets, dict[str, Any]]:
        sets = {}
        for name in self.spec.parts:
            examples = self._read(name)
            sets[name] = tokens.encode(tokenizer, examples.texts, self.config.max_seq_length)
            kind = torch.float32 if self.spec.is_regression else torch.int64
            sets[name]["label"] = torch.tensor(examples.labels, dtype=kind)
        return sets, {}

    def build_datasets(self) -> Datasets:
        train, *evaluation = (TokenSet(cache.read(self._cache, name)) for name in self.spec.parts)
        names = [name.removeprefix("dev").removeprefix("_") for name in self.spec.parts][1:]
        return Datasets(train, dict(zip(names, evaluation, strict=True)))

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

    def _read(self, name: str) -> Examples:
        if self.data_dir is None:
            rows = hub.rows(*self.spec.hub_name, split=self.spec.parts[name].split)
            columns = tuple(list(rows[column]) for column in self.spec.hub_text or self.spec.text)
            return Examples(columns, list(rows["label"]))
        return tsv.read(self.spec, self._files[name][0])

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        return tsv.find(self.spec, self.data_dir)
