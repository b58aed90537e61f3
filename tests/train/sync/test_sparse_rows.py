"""Only rows with a gradient are sent, and the dense gradient is the same afterwards."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from train.sync.ddp import hooks
from train.sync.ddp.hooks import candidates, nonzero_rows


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(10, 4), nn.Embedding(5, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.words.weight


def test_candidates_are_large_trained_embeddings_that_nothing_else_holds(monkeypatch):
    assert candidates(Tied()) == []  # too small
    monkeypatch.setattr(hooks, "LEAST_BYTES", 1)
    model = Tied()
    assert [id(param) for param in candidates(model)] == [id(model.places.weight)]
    model.places.weight.requires_grad_(False)
    assert candidates(model) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    rows=st.lists(st.sampled_from(["none", "one", "nan", "tiny"]), min_size=1),
    width=st.integers(1, 5),
)
def test_touched_rows_are_those_with_any_number_but_zero(dtype, rows, width):
    numbers = {"none": 0.0, "one": -1.0, "nan": float("nan"), "tiny": 1e-44}
    gradient = torch.zeros(len(rows), width, dtype=dtype)
    gradient[:, -1] = torch.tensor([numbers[kind] for kind in rows], dtype=dtype)
    assert nonzero_rows(gradient).bool().tolist() == [kind != "none" for kind in rows]


def test_gradient_within_a_bucket_is_searched_for_used_rows():
    """It may start at an address that is not aligned to eight bytes."""
    bucket = torch.zeros(1 + 4 * 2)
    bucket[3] = 1.0
    assert nonzero_rows(bucket[1:].view(4, 2)).bool().tolist() == [False, True, False, False]
