"""Padding is masked and typed as the tokenizer says, on the side that it says."""

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from train.tasks.language.prepared import TokenSet, collator

pytestmark = pytest.mark.xdist_group("transformers")  # imported once for all of them

TOKENS = {
    "input_ids": torch.tensor([7, 8, 9, 5, 6], dtype=torch.int32),
    "token_type_ids": torch.tensor([0, 0, 1, 0, 1], dtype=torch.int32),
    "offsets": torch.tensor([0, 3, 5]),
}
TEXTS = TokenSet({**TOKENS, "label": torch.tensor([1, 0])})


def batch_of(side, width, multiple=1, samples=TEXTS, **options):
    words = {f"w{number}": number for number in range(4)} | {"[PAD]": 4}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "[PAD]")),
        pad_token="[PAD]",
        padding_side=side,
    )
    tokenizer._pad_token_type_id = 3
    batch = collator(tokenizer, width, multiple, **options)([samples[0], samples[1]])
    assert type(batch) is dict and {tensor.dtype for tensor in batch.values()} == {torch.int64}
    return {name: tensor.tolist() for name, tensor in batch.items()}


def test_to_the_longest():
    assert len(TEXTS) == 2
    assert batch_of("right", None) == {
        "input_ids": [[7, 8, 9], [5, 6, 4]],
        "token_type_ids": [[0, 0, 1], [0, 1, 3]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
        "labels": [1, 0],
    }


def test_to_a_width_and_on_the_left():
    assert batch_of("left", 4, multiple=8) == {
        "input_ids": [[4, 7, 8, 9], [4, 4, 5, 6]],
        "token_type_ids": [[3, 0, 0, 1], [3, 3, 0, 1]],
        "attention_mask": [[0, 1, 1, 1], [0, 0, 1, 1]],
        "labels": [1, 0],
    }


def test_to_a_multiple_with_labels_of_tokens():
    tagged = TokenSet({**TOKENS, "labels": torch.tensor([0, 2, 1, -100, 1], dtype=torch.int32)})
    found = batch_of("right", None, multiple=4, samples=tagged, tags=True)
    assert found["input_ids"] == [[7, 8, 9, 4], [5, 6, 4, 4]]
    assert found["labels"] == [[0, 2, 1, -100], [-100, 1, -100, -100]]
