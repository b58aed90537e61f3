"""BERT's pre-training: hidden tokens and next sentences, from plain text or HDF5 shards."""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import BertForPreTraining

from configs.settings.train import TrainConfig
from muster.checkout import CHECKOUT
from muster.errors import UsageError
from train.tasks.base import Answers, Batch, Metric, Output, Samples, in_float32
from train.tasks.language import classifier
from train.tasks.language.prepared import PreparedTask, Sets
from train.tasks.pretraining import corpus
from train.tasks.pretraining.segment_pairs import (
    EVALUATION_SEED,
    Masking,
    Pairs,
    PairSample,
    collate,
    most_per_sample,
)
from train.tasks.pretraining.shards import Shards

BERT_BASE = CHECKOUT / "configs" / "models" / "bert-base.json"
TOKENIZER = "bert-base-uncased"  # has the vocabulary of this shape
SHARDS_PADDING = 0
INPUTS = ("input_ids", "token_type_ids", "attention_mask", "masked_positions")  # of the model
COLUMNS = ("surprise", "right", "hidden", "next_right")
MAX_EXPONENT = 700.0  # just above this, e**x overflows


class BertPreTraining(PreparedTask):
    """Two parts of one loss: the mean over hidden tokens, and the mean over pairs."""

    loss_parts = ("mlm", "nsp")

    def __init__(self, config: TrainConfig) -> None:
        own_shape = config.model is None
        super().__init__(config, str(BERT_BASE), TOKENIZER if own_shape else None)

    def prepare(self) -> None:
        """Tokenise the text into the cache, unless this is already done; check the shards.

        Raises:
            UsageError: data, model or tokenizer are missing or do not fit each other.
        """
        if not self.config.mask_probability:
            raise UsageError("--mask-probability 0 leaves nothing to learn\ntip: BERT uses 0.15")
        kind, length = self._model_config.model_type, self.config.max_seq_length
        if kind != "bert":
            raise UsageError(
                f"--model {self.model} has type {kind}, but pre-training needs type bert"
            )
        if not self.is_ready:
            self._check_text(self._loaded_tokenizer)
        super().prepare()
        for own in self.sets().values():
            if isinstance(own, Shards) and own.width > length:
                raise UsageError(
                    f"--max-seq-length is {length}, but {own.paths[0].parent} has samples of "
                    f"{own.width} tokens"
                    f"\ntip: use --max-seq-length {own.width}"
                )

    def _tokenised(self, tokenizer: Any) -> tuple[Sets, dict[str, Any]]:
        sets = {}
        for name, paths in self._files.items():
            read = corpus.read(paths, tokenizer.unk_token)
            sets[name] = corpus.encode(tokenizer, read, self.config.max_seq_length - corpus.MARKS)
            count = len(sets[name]["documents"]) - 1
            if count < 2:
                raise UsageError(
                    f"the {name} set of --data-dir {self.data_dir} has {count} "
                    f"document{'s'[: count != 1]}, but random next sentences need at least two"
                    "\ntip: separate documents with blank lines"
                )
        return sets, {}

    def start_epoch(self, epoch: int) -> None:
        """Draw new pairs and masks; those in shards are fixed."""
        if not self.is_ready:
            self._train.epoch = epoch

    def build_model(self) -> nn.Module:
        """BERT and both heads on the CPU in float32."""
        return classifier.build(self.model, self._model_config, self.is_fresh, SparseBert)

    def collate(self, samples: Sequence[PairSample]) -> Batch:
        padding = SHARDS_PADDING if self.is_ready else self._loaded_tokenizer.pad_token_id
        return collate(samples, padding, self.pad_multiple)

    def units(self, batch: Batch) -> Tensor:
        """The numbers of hidden tokens and of samples in the batch, (2,)."""
        counts = [len(batch["masked_labels"]), len(batch["labels"])]
        return torch.tensor(counts, dtype=torch.float64)

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        """The mean loss over hidden tokens and over pairs, (2,), and `COLUMNS` to sum, (n, 4)."""
        inputs = {name: batch[name] for name in INPUTS}
        scores, pairs = map(in_float32, model(**inputs))
        targets, labels = batch["masked_labels"], batch["labels"]
        token_losses = cross_entropy(scores, targets, reduction="none")
        mlm = token_losses.sum() / max(1, len(targets))
        loss = torch.stack([mlm, cross_entropy(pairs, labels)])
        with torch.no_grad():
            is_right = (scores.argmax(-1) == targets).to(scores)
            each = torch.stack([token_losses, is_right, torch.ones_like(is_right)], dim=1)
            rows = batch["masked_positions"] // batch["input_ids"].shape[1]  # the sample of each
            sums = each.new_zeros(len(labels), 3).index_add(0, rows, each)
            next_right = (pairs.argmax(-1) == labels).to(sums)
        return Output(loss, torch.cat([sums, next_right[:, None]], dim=1))

    def metric(self, evaluation_set: Samples) -> Metric:
        return Guesses()

    def predictions(self, logits: Tensor, labels: Tensor) -> tuple[Answers, Answers]:
        """The predicted labels (n,) and the true labels (n,): 1 if the second segment is random."""
        right = logits[:, COLUMNS.index("next_right")] > 0
        return torch.where(right, labels, 1 - labels), labels

    def sets(self) -> dict[str, Samples]:
        if self.is_ready:
            size = self._model_config.vocab_size
            return {name: Shards(paths, size) for name, paths in self._files.items()}
        tokenizer, config = self._loaded_tokenizer, self.config
        sets = {
            name: Pairs(
                own,
                self._masking,
                (tokenizer.cls_token_id, tokenizer.sep_token_id),
                seed=config.seed if name == "train" else EVALUATION_SEED,
                room=config.max_seq_length - corpus.MARKS,
            )
            for name, own in self._cached["sets"].items()
        }
        self._train = sets["train"]
        return {**sets}

    def _check_text(self, tokenizer: Any) -> None:
        if self.config.max_seq_length < corpus.MARKS + 2:
            raise UsageError(
                f"--max-seq-length must be at least {corpus.MARKS + 2} for sentence pairs"
            )
        if None in (tokenizer.mask_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id):
            raise UsageError(
                f"--tokenizer {self.tokenizer} has no [MASK], [CLS] or [SEP] token"
                "\ntip: use a BERT tokenizer"
            )
        if self.config.whole_word and not self._masking.continues:
            raise UsageError(
                "--whole-word needs a WordPiece tokenizer, which marks parts of words with ##, "
                f"but --tokenizer {self.tokenizer} is of another kind"
            )

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        return corpus.find(self.data_dir)

    @property
    def is_ready(self) -> bool:  # type: ignore[override]
        """Whether the files are shards, which are read as they are."""
        return self._files["train"][0].suffix in corpus.SHARDS

    @cached_property
    def _masking(self) -> Masking:
        tokenizer, share = self._loaded_tokenizer, self.config.mask_probability
        words, special = tokenizer.get_vocab().items(), frozenset(tokenizer.all_special_ids)
        return Masking(
            len(tokenizer), tokenizer.mask_token_id, special,
            frozenset(at for word, at in words if word.startswith("##")), share,
            most_per_sample(share, self.config.max_seq_length), self.config.whole_word,
        )  # fmt: skip


class SparseBert(BertForPreTraining):  # type: ignore[misc]  # transformers ships no types for it
    """BertForPreTraining with its weights, but with scores only at given positions.

    Scores for every token would be n * width * vocabulary numbers, most of them unused.
    """

    @classmethod
    def from_config(cls, config: Any, dtype: torch.dtype) -> "SparseBert":
        """Make a model with random weights, in the same way as the Auto classes."""
        model: SparseBert = cls._from_config(config, dtype=dtype)
        return model

    def forward(self, masked_positions: Tensor, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (m, vocabulary) at m positions of the flattened batch, and (n, 2) for pairs."""
        hidden, pooled = self.bert(**inputs)[:2]
        scores, pairs = self.cls(hidden.flatten(0, 1)[masked_positions], pooled)
        return scores, pairs


class Guesses:
    """Sums over hidden tokens and samples."""

    def __init__(self) -> None:
        self.state = torch.zeros(len(COLUMNS) + 1, dtype=torch.float64)

    def update(self, logits: Tensor, labels: Tensor, positions: Tensor) -> None:
        """Count n samples: `COLUMNS` (n, 4) in place of logits, which would take gigabytes."""
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
