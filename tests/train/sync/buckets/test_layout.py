"""Gradients lie side by side in one tensor, and come back from it."""

import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from train.sync.buckets.layout import Bucket, groups


def test_small_ones_go_together_and_large_ones_alone():
    single, double = torch.float32, torch.float64
    sizes = [(10, single), (5, double), (9, single), (4, double), (12, single), (15, single)]
    sizes += [(400, double)]
    tensors = [torch.zeros(size, dtype=kind) for size, kind in sizes]
    found = [[t.numel() for t in group] for group in groups(tensors, 120)]
    assert found == [[10, 9], [5, 4], [12], [15], [400]]  # 12 is too many, 15 half of the limit
    assert [len(group) for group in groups(tensors, 0)] == [1] * 7
    assert groups([], 100) == []


def test_what_is_ready_does_not_wait_for_what_comes_after_a_large_one():
    def found(*sizes):
        return [[t.numel() for t in g] for g in groups([torch.zeros(n) for n in sizes], 100 * 4)]

    assert found(20, 50, 20) == [[20], [50], [20]]
    assert found(3, 50, 3, 90, 3) == [[50], [90], [3, 3, 3]]  # too little for a collective


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(0, 400))
def test_every_tensor_is_in_one_group_and_groups_come_as_they_are_complete(sizes, limit):
    tensors = [torch.zeros(size) for size in sizes]
    place = {id(tensor): at for at, tensor in enumerate(tensors)}
    found = [[place[id(one)] for one in group] for group in groups(tensors, limit)]
    assert sorted(at for group in found for at in group) == list(range(len(sizes)))
    assert all(group == sorted(group) for group in found)
    assert [group[-1] for group in found] == sorted(group[-1] for group in found)
    for group in found:
        nbytes = [tensors[at].nbytes for at in group]
        assert len(group) == 1 or (sum(nbytes) <= limit and max(nbytes) < limit / 2)


def test_gradients_are_taken_and_given_back():
    params = [nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (4,), (1,))]
    bucket = Bucket(params)
    params[0].grad = torch.arange(6.0).view(3, 2).t()  # not contiguous
    params[2].grad = torch.tensor([7.0])
    bucket.take()
    assert all(param.grad is None for param in params)
    assert bucket.flat.tolist() == [0, 2, 4, 1, 3, 5, 0, 0, 0, 0, 7]
    assert bucket.had == [True, False, True]

    bucket.flat *= 2
    bucket.give_back([True, False, True])
    assert params[0].grad.tolist() == [[0, 4, 8], [2, 6, 10]]
    assert params[1].grad is None and params[2].grad.tolist() == [14]


def test_more_of_a_gradient_is_added_to_what_is_there():
    params = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    bucket = Bucket(params)
    params[1].grad = torch.ones(2)
    bucket.take()
    for param in params:
        param.grad = torch.full((2,), 5.0)
    bucket.add_back()
    assert [param.grad.tolist() for param in params] == [[5, 5], [6, 6]]


@pytest.mark.parametrize("count", [1, 2])
def test_a_gradient_lies_in_memory_as_its_parameter_does(count):
    """A fused optimizer goes through parameter, gradient and moments as they lie in memory."""
    values = torch.arange(48.0).view(2, 3, 4, 2)
    params = [nn.Parameter(values.to(memory_format=torch.channels_last)) for _ in range(count)]
    params.append(nn.Parameter(torch.zeros(5, 3).t()))
    for group in (params[:count], params):
        bucket = Bucket(group)
        for layout in (torch.channels_last, torch.contiguous_format):
            for param in group:
                param.grad = param.detach().clone()
            params[0].grad = params[0].grad.contiguous(memory_format=layout)
            bucket.take()
            bucket.flat *= 2
            bucket.give_back([True] * len(group))
            for param in group:
                assert param.grad.stride() == param.stride()
                assert torch.equal(param.grad, 2 * param)


def test_a_bucket_has_memory_from_when_it_is_full_until_gradients_are_let_go():
    params = [nn.Parameter(torch.zeros(4)) for _ in range(2)]
    bucket = Bucket(params)
    for _ in range(2):
        assert not hasattr(bucket, "flat") and not bucket.views
        params[0].grad = torch.ones(4)
        bucket.take()
        memory = weakref.ref(bucket.flat.untyped_storage())
        bucket.give_back([True, True])
        assert params[1].grad.data_ptr() == params[0].grad.data_ptr() + params[0].grad.nbytes
        for param in params:
            param.grad = None
        assert memory() is None


def test_a_gradient_alone_in_its_bucket_stays_where_it_is():
    param = nn.Parameter(torch.zeros(2, 3))
    param.grad = torch.ones(2, 3)
    place = param.grad.data_ptr()
    bucket = Bucket([param])
    bucket.take()
    bucket.flat *= 2
    bucket.give_back([True])
    assert param.grad.data_ptr() == place and param.grad.tolist() == [[2] * 3] * 2


def test_gradients_that_share_memory_are_kept_apart():
    """Autograd gives both parameters the same memory, as each is only looked at in another form."""
    params = [nn.Parameter(torch.ones(1, 2, 3)), nn.Parameter(torch.ones(6))]
    buckets = {param: Bucket([param]) for param in params}
    for param in params:
        param.register_post_accumulate_grad_hook(lambda param: buckets[param].take())
    (params[0].view(2, 3) + params[1].view(2, 3)).square().sum().backward()
    for bucket in buckets.values():
        bucket.flat *= 2
        bucket.give_back([True])
    assert all(param.grad.eq(8).all() for param in params)


def test_a_sparse_gradient_becomes_dense():
    param = nn.Parameter(torch.zeros(3, 2))
    param.grad = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1, 2), (3, 2))
    bucket = Bucket([param])
    bucket.take()
    assert bucket.flat.tolist() == [0, 0, 1, 1, 0, 0]
