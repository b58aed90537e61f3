"""BERT with its two heads, of which the one over the vocabulary sees hidden tokens only."""

from typing import Any

import torch
from torch import Tensor
from transformers import BertForPreTraining


class SparseBert(BertForPreTraining):  # type: ignore[misc]  # transformers ships no types for it
    """BertForPreTraining, weights and all, with scores where they are asked for.

    Scores for every token would be n * width * vocabulary numbers, most of them for nothing.
    """

    @classmethod
    def from_config(cls, config: Any, dtype: torch.dtype) -> "SparseBert":
        """Random weights, as the Auto classes make them."""
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
