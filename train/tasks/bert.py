"""BERT's pre-training: hidden tokens and next sentences, from plain text or HDF5 shards."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from configs.plugins import REPOSITORY
from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.tasks.base import Answers, Batch, Datasets, Metric, Output, Samples, in_float32
from train.tasks.language import classifier
from train.tasks.language.prepared import PreparedTask, Sets
from train.tasks.pretraining import corpus, data_files
from train.tasks.pretraining.samples import PairSample, collate
from train.tasks.pretraining.segment_pairs import EVALUATION_SEED, Masking, Pairs, most_per_sample
from train.tasks.pretraining.shards import Shards
from train.tasks.sources import cache, hub

BERT_BASE = REPOSITORY / "configs" / "models" / "bert-base.json"
TOKENIZER = "bert-base-uncased"  # with the shape's vocabulary
SHARDS_PADDING = 0
COLUMNS = ("surprise", "right", "hidden", "next_right")
MAX_EXPONENT = 700.0  # beyond it e**x is not a float


class BertPreTraining(PreparedTask):
    """Two parts of one loss: the mean over hidden tokens, and the mean over pairs."""

    loss_parts = ("mlm", "nsp")

    def __init__(self, config: TrainConfig) -> None:
        own_shape = config.model is None
        super().__init__(config, str(BERT_BASE), TOKENIZER if own_shape else None)

    def prepare(self) -> None:
        """Tokenise the text into the cache, unless it is done already; check the shards.

        Raises:
            UsageError: data, model or tokenizer are missing or do not fit each other.
        """
        if not self.config.mask_probability:
            raise UsageError("--mask-probability 0 leaves nothing to learn; BERT has 0.15")
        config, length = self._model_config, self.config.max_seq_length
        if self.is_ready:
            classifier.check_length(self.model, config, length)
            for shards in self._shards().values():
                if shards.width > length:
                    raise UsageError(
                        f"--max-seq-length is {length}, but {shards.paths[0].parent} has samples "
                        f"of {shards.width} tokens; give --max-seq-length {shards.width}"
                    )
            return
        classifier.check(self.model, config, self._loaded_tokenizer, length)
        self._check_text(self._loaded_tokenizer)
        super().prepare()

    def _tokenised(self, tokenizer: Any) -> tuple[Sets, dict[str, Any]]:
        sets = {}
        for name, paths in self._files.items():
            read = corpus.read(paths, tokenizer.unk_token)
            sets[name] = corpus.encode(tokenizer, read, self.config.max_seq_length - corpus.MARKS)
            corpus.refuse_few(f"the {name} set of --data-dir {self.data_dir}", sets[name])
        return sets, {}

    def build_datasets(self) -> Datasets:
        sets: Mapping[str, Samples] = self._shards() if self.is_ready else self._pairs()
        named = {"" if name == "valid" else name: own for name, own in sets.items()}
        self._train = named.pop("train")
        return Datasets(self._train, named)

    def start_epoch(self, epoch: int) -> None:
        """Draw new pairs and masks; those in shards are fixed."""
        if isinstance(self._train, Pairs):
            self._train.epoch = epoch

    def build_model(self) -> nn.Module:
        """BERT and both heads on the CPU in float32."""
        from train.tasks.pretraining.bert_heads import SparseBert

        return classifier.build(self.model, self._model_config, self.is_fresh, SparseBert)

    def collate(self, samples: Sequence[PairSample]) -> Batch:
        padding = SHARDS_PADDING if self.is_ready else self._loaded_tokenizer.pad_token_id
        return collate(samples, padding, self._width)

    def units(self, batch: Batch) -> Tensor:
        """Hidden tokens and samples of the batch, (2,)."""
        counts = [len(batch["masked_labels"]), len(batch["labels"])]
        return torch.tensor(counts, dtype=torch.float64)

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        """The mean loss over hidden tokens and over pairs, (2,), and what `Guesses` counts."""
        scores, pairs = map(in_float32, model(**classifier.inputs(model, batch)))
        targets, labels = batch["masked_labels"], batch["labels"]
        token_losses = cross_entropy(scores, targets, reduction="none")
        mlm = token_losses.sum() / max(1, len(targets))
        loss = torch.stack([mlm, cross_entropy(pairs, labels)])
        with torch.no_grad():
            rows = batch["masked_positions"] // batch["input_ids"].shape[1]
            right = pairs.argmax(-1) == labels
            counts = per_sample(token_losses.detach(), scores, targets, rows, right)
        return Output(loss, counts)

    def metric(self, evaluation_set: Samples) -> Metric:
        return Guesses()

    def predictions(self, logits: Tensor, labels: Tensor) -> tuple[Answers, Answers]:
        """The prediction (n,) whether the second sentence is the next, and whether it is (n,)."""
        right = logits[:, COLUMNS.index("next_right")] > 0
        return torch.where(right, labels, 1 - labels), labels

    def _shards(self) -> dict[str, Shards]:
        size = self._model_config.vocab_size
        return {name: Shards(paths, size) for name, paths in self._files.items()}

    def _pairs(self) -> dict[str, Pairs]:
        tokenizer, config = self._loaded_tokenizer, self.config
        return {
            name: Pairs(
                cache.read(self._cache, name),
                self._masking,
                (tokenizer.cls_token_id, tokenizer.sep_token_id),
                seed=config.seed if name == "train" else EVALUATION_SEED,
                room=config.max_seq_length - corpus.MARKS,
            )
            for name in cache.facts(self._cache)["sets"]
        }

    def _check_text(self, tokenizer: Any) -> None:
        if self.config.max_seq_length < corpus.MARKS + 2:
            raise UsageError(f"--max-seq-length must be at least {corpus.MARKS + 2} for pairs")
        if None in (tokenizer.mask_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id):
            raise UsageError(
                f"--tokenizer {self.tokenizer} has no [MASK], [CLS] or [SEP]; give one of BERT's"
            )
        if self.config.whole_word and not self._masking.continues:
            raise UsageError(
                f"--whole-word needs WordPiece's ## to tell words, which --tokenizer "
                f"{self.tokenizer} has not"
            )

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        return data_files.find(self.data_dir)

    @property
    def is_ready(self) -> bool:  # type: ignore[override]
        """Whether the files are shards, which are read as they are."""
        return data_files.are_shards(self._files)

    @cached_property
    def _model_config(self) -> Any:
        from transformers import AutoConfig

        config = hub.fetch("--model", self.model, AutoConfig.from_pretrained)
        if config.model_type != "bert":
            raise UsageError(
                f"--model {self.model} is of type {config.model_type}; pre-training is for bert"
            )
        return config

    @cached_property
    def _masking(self) -> Masking:
        tokenizer, share = self._loaded_tokenizer, self.config.mask_probability
        words, special = tokenizer.get_vocab().items(), frozenset(tokenizer.all_special_ids)
        return Masking(
            len(tokenizer), tokenizer.mask_token_id, special,
            frozenset(at for word, at in words if word.startswith("##")), share,
            most_per_sample(share, self.config.max_seq_length), self.config.whole_word,
        )  # fmt: skip


def per_sample(
    token_losses: Tensor, scores: Tensor, targets: Tensor, rows: Tensor, next_right: Tensor
) -> Tensor:
    """The values to sum for n samples with m hidden tokens: `COLUMNS`, (n, 4).

    Each hidden token has its loss and target (m,), its scores (m, vocabulary), and its sample in
    `rows` (m,). Each sample has whether the next sentence was predicted correctly (n,).
    """
    each = [token_losses, (scores.argmax(-1) == targets).to(token_losses)]
    each.append(torch.ones_like(token_losses))
    sums = token_losses.new_zeros(len(next_right), 3).index_add(0, rows, torch.stack(each, dim=1))
    return torch.cat([sums, next_right.to(sums)[:, None]], dim=1)


class Guesses:
    """Sums over hidden tokens and samples."""

    def __init__(self) -> None:
        self.state = torch.zeros(len(COLUMNS) + 1, dtype=torch.float64)

    def update(self, logits: Tensor, labels: Tensor, positions: Tensor) -> None:
        """Count n samples: `per_sample` (n, 4) in place of logits, which would take gigabytes."""
        self.state[:-1] += logits.double().sum(0)
        self.state[-1] += len(labels)

    def compute(self) -> dict[str, float]:
        surprise, right, hidden, next_right, samples = self.state.tolist()
        return {
            "mlm_accuracy": right / hidden if hidden else 0.0,
            "nsp_accuracy": next_right / samples if samples else 0.0,
            "perplexity": math.exp(min(surprise / max(hidden, 1.0), MAX_EXPONENT)),
        }


build = BertPreTraining
