"""BERT with its two heads; the one over the vocabulary computes hidden tokens only."""

from typing import Any

import torch
from torch import Tensor
from transformers import BertForPreTraining


class SparseBert(BertForPreTraining):  # type: ignore[misc]  # transformers ships no types for it
    """BertForPreTraining with its weights, but with scores only at given positions.

    Scores for every token would be n * width * vocabulary numbers, most of them unused.
    """

    @classmethod
    def from_config(cls, config: Any, dtype: torch.dtype) -> "SparseBert":
        """Random weights, made like those of the Auto classes."""
        model: SparseBert = cls._from_config(config, dtype=dtype)
        return model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        masked_positions: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Scores (m, vocabulary) at m positions of the flattened batch, and (n, 2) of the pairs."""
        hidden, pooled = self.bert(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        )[:2]
        scores, pairs = self.cls(hidden.flatten(0, 1)[masked_positions], pooled)
        return scores, pairs
