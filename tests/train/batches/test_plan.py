"""The plan has every sample once per epoch for any ranks, and the same batches for any split."""

import itertools
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train.batches.plan import BatchPlan, evaluation_indices, packed, split_batch
from train.model.rng import hash_seed

weights = st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(sum)


@given(st.integers(0, 500), weights)
def test_split_sums_exactly_and_follows_the_weights(size, weights):
    parts = split_batch(size, weights)
    assert sum(parts) == size
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - size * weight / sum(weights)) < 1
        assert weight > 0 or part == 0


def test_order_differs_between_epochs_and_between_seeds():
    def order(seed: int, epoch: int) -> tuple[int, ...]:
        plan = BatchPlan(50, 50, (1.0,), 1, seed)
        return next(plan.epoch(epoch, 0)).micro_batches[0].indices

    orders = {order(seed, epoch) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert order(1, 2) == order(1, 2)


@pytest.mark.parametrize("size", [1, 9, 20_011])
def test_order_in_32_bit_numbers_equals_that_in_64(size):
    generator = torch.Generator().manual_seed(hash_seed(3, 1))
    plan = BatchPlan(size, 7, (1.0,), 1, 3)
    indices = [index for step in plan.epoch(1, 0) for index in step.micro_batches[0].indices]
    assert indices == torch.randperm(size, generator=generator).tolist()


def python_bytes_of(call):
    """Return the peak memory of Python objects during `call`, without the values of tensors."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


SAMPLES = 50_000


def test_epoch_creates_no_python_object_per_sample():
    steps = BatchPlan(SAMPLES, 10, (1.0,), 1, 0).epoch(0, 0)
    assert python_bytes_of(lambda: next(steps)) < SAMPLES


@pytest.mark.parametrize("lengths", [(), torch.arange(SAMPLES).flip(0)])
def test_evaluation_creates_no_python_object_per_sample(lengths):
    if len(lengths):
        lengths = packed("q", lengths)
    batches = evaluation_indices(SAMPLES, 0, 1, 10, lengths)
    assert python_bytes_of(lambda: next(batches)) < 10 * SAMPLES  # a list takes 40 bytes each


def test_lengths_take_8_bytes_each():
    lengths = torch.arange(SAMPLES) + 1000
    numbers = packed("q", lengths)
    assert python_bytes_of(lambda: packed("q", lengths)) < 20 * SAMPLES
    assert (len(numbers), numbers[3], numbers[SAMPLES - 1]) == (SAMPLES, 1003, SAMPLES + 999)


def test_neighbouring_seeds_are_unrelated():
    assert len({hash_seed(a, b) for a in range(30) for b in range(30)}) == 900
    assert all(0 <= hash_seed(a) < 2**63 for a in range(100))


@given(st.integers(0, 200), st.integers(1, 9), st.integers(1, 40))
def test_evaluation_counts_every_sample_once(size, ranks, batch):
    batches = [
        indices for rank in range(ranks) for indices in evaluation_indices(size, rank, ranks, batch)
    ]
    assert [index for indices in batches for index in indices] == list(range(size))
    assert all(0 < len(indices) <= batch for indices in batches)


@given(st.lists(st.integers(1, 50), max_size=99), st.integers(1, 9), st.integers(1, 40))
def test_evaluation_by_length_counts_every_sample_once(lengths, ranks, batch):
    of_ranks = [
        list(evaluation_indices(len(lengths), rank, ranks, batch, lengths)) for rank in range(ranks)
    ]
    assert all(0 < len(indices) <= batch for batches in of_ranks for indices in batches)
    of_ranks = [list(itertools.chain(*batches)) for batches in of_ranks]
    assert sorted(itertools.chain(*of_ranks)) == list(range(len(lengths)))
    sizes = list(map(len, of_ranks))
    assert max(sizes) - min(sizes) <= 1
    widths = [[lengths[index] for index in indices] for indices in of_ranks]
    assert all(row == sorted(row) for row in widths)
    tokens = list(map(sum, widths))
    assert max(tokens) - min(tokens) <= max(lengths, default=0)
