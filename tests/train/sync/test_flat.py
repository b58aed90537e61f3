"""Tensors are stored side by side in a flat tensor, and restored from it."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from train.sync.ranks import flatten, groups, unflatten


def test_small_tensors_share_a_group_and_large_ones_do_not():
    single, double = torch.float32, torch.float64
    sizes = [(10, single), (5, double), (9, single), (4, double), (12, single), (15, single)]
    sizes += [(400, double)]
    tensors = [torch.zeros(size, dtype=kind) for size, kind in sizes]
    lengths = [[t.numel() for t in group] for group in groups(tensors, 120)]
    assert lengths == [[10, 9], [5, 4], [12], [15], [400]]  # 12 is too many, 15 half of the limit
    assert [len(group) for group in groups(tensors, 0)] == [1] * 7
    assert groups([], 100) == []


def test_complete_group_is_not_delayed_by_a_large_tensor():
    def group_sizes(*sizes):
        return [[t.numel() for t in g] for g in groups([torch.zeros(n) for n in sizes], 100 * 4)]

    assert group_sizes(20, 50, 20) == [[20], [50], [20]]
    assert group_sizes(3, 50, 3, 90, 3) == [[50], [90], [3, 3, 3]]  # too little for a collective


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(0, 400))
def test_flat_groups_hold_each_tensor_once_in_completion_order(sizes, limit):
    tensors = [torch.zeros(size) for size in sizes]
    place = {id(tensor): index for index, tensor in enumerate(tensors)}
    index_groups = [[place[id(tensor)] for tensor in group] for group in groups(tensors, limit)]
    assert sorted(index for group in index_groups for index in group) == list(range(len(sizes)))
    assert all(group == sorted(group) for group in index_groups)
    assert [group[-1] for group in index_groups] == sorted(group[-1] for group in index_groups)
    for group in index_groups:
        nbytes = [tensors[index].nbytes for index in group]
        assert len(group) == 1 or (sum(nbytes) <= limit and max(nbytes) < limit / 2)


def test_flattened_tensors_are_restored():
    tensors = [torch.arange(6.0).view(3, 2).t(), torch.tensor(7.0), torch.zeros(0)]
    flat = flatten(tensors)
    assert flat.tolist() == [0, 2, 4, 1, 3, 5, 7]
    unflatten(2 * flat, tensors)
    assert tensors[0].tolist() == [[0, 4, 8], [2, 6, 10]] and tensors[1] == 14
