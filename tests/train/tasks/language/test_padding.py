"""Padding is masked and typed as the tokenizer says, on the side that it says."""

import torch

from train.tasks.language.padding import Padding, TokenSet

TOKENS = TokenSet(
    {
        "input_ids": torch.tensor([7, 8, 9, 5, 6], dtype=torch.int32),
        "token_type_ids": torch.tensor([0, 0, 1, 0, 1], dtype=torch.int32),
        "offsets": torch.tensor([0, 3, 5]),
        "labels": torch.tensor([1, 0]),
    }
)
VALUES = {"input_ids": 4, "token_type_ids": 3}


def collate(side, width):
    batch = Padding(VALUES, side).collate([TOKENS[0], TOKENS[1]], width)
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    return {name: tensor.tolist() for name, tensor in batch.items()}


def test_to_the_longest():
    assert len(TOKENS) == 2
    assert collate("right", None) == {
        "input_ids": [[7, 8, 9], [5, 6, 4]],
        "token_type_ids": [[0, 0, 1], [0, 1, 3]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
        "labels": [1, 0],
    }


def test_to_a_width_and_on_the_left():
    assert collate("left", 4) == {
        "input_ids": [[4, 7, 8, 9], [4, 4, 5, 6]],
        "token_type_ids": [[3, 0, 0, 1], [3, 3, 0, 1]],
        "attention_mask": [[0, 1, 1, 1], [0, 0, 1, 1]],
        "labels": [1, 0],
    }


def test_without_token_types():
    one = TokenSet(
        {"input_ids": torch.arange(2), "offsets": torch.tensor([0, 2]), "labels": torch.ones(1)}
    )
    assert set(Padding(VALUES, "right").collate([one[0]], None)) == {
        "input_ids",
        "attention_mask",
        "labels",
    }
