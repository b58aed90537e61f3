"""Gradients lie side by side in one tensor, and come back from it."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from train.buckets import Bucket, runs


def test_runs_are_of_one_kind_up_to_the_limit():
    sizes = [(10, torch.float32), (20, torch.float32), (5, torch.float64), (400, torch.float64)]
    tensors = [torch.zeros(size, dtype=kind) for size, kind in sizes]
    assert [[t.numel() for t in b] for b in runs(tensors, 120)] == [[10, 20], [5], [400]]
    assert [len(b) for b in runs(tensors, 0)] == [1, 1, 1, 1]
    assert runs([], 100) == []


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(0, 400))
def test_every_tensor_is_in_one_run_in_order(sizes, limit):
    tensors = [torch.zeros(size) for size in sizes]
    found = runs(tensors, limit)
    assert [id(one) for run in found for one in run] == [id(one) for one in tensors]
    assert all(len(run) == 1 or sum(one.nbytes for one in run) <= limit for run in found)


def test_gradients_are_taken_and_given_back():
    params = [nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (4,), (1,))]
    bucket = Bucket(params)
    params[0].grad = torch.arange(6.0).view(3, 2).t()  # not contiguous
    params[2].grad = torch.tensor([7.0])
    bucket.take(params[0])
    assert params[0].grad is None and not bucket.is_full
    bucket.take_rest()
    assert bucket.is_full and bucket.flat.tolist() == [0, 2, 4, 1, 3, 5, 0, 0, 0, 0, 7]
    assert [bucket.had(param) for param in params] == [True, False, True]

    bucket.flat *= 2
    bucket.give_back([True, False, True])
    assert params[0].grad.tolist() == [[0, 4, 8], [2, 6, 10]]
    assert params[1].grad is None and params[2].grad.tolist() == [14]
    assert not bucket.is_full and not bucket.had(params[0])


def test_a_sparse_gradient_becomes_dense():
    param = nn.Parameter(torch.zeros(3, 2))
    param.grad = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1, 2), (3, 2))
    bucket = Bucket([param])
    bucket.take(param)
    assert bucket.flat.tolist() == [0, 0, 1, 1, 0, 0]
