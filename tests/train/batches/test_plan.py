"""The plan: every sample once per epoch, whatever the ranks; the same batches for any split."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.batches.plan import (
    BatchPlan,
    evaluation_indices,
    split_batch,
)
from train.model.rng import hash_seed

weights = st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(sum)


@given(st.integers(0, 500), weights)
def test_split_sums_exactly_and_follows_the_weights(size, weights):
    parts = split_batch(size, weights)
    assert sum(parts) == size
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - size * weight / sum(weights)) < 1
        assert weight > 0 or part == 0


@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 20),
    weights=weights,
    accumulation=st.integers(1, 4),
    epoch=st.integers(0, 3),
)
def test_an_epoch_holds_every_sample_once(size, batch, weights, accumulation, epoch):
    plan = BatchPlan(size, batch, tuple(map(float, weights)), accumulation, seed=7)
    whole = BatchPlan(size, batch, (1.0,), 1, seed=7)
    by_rank = [list(plan.epoch(epoch, rank)) for rank in range(len(weights))]
    alone = list(whole.epoch(epoch, 0))
    assert len(alone) == plan.steps_per_epoch
    for step, reference in enumerate(alone):
        steps = [ranks[step] for ranks in by_rank]
        seen = [
            i for s in steps for micro in s.micro_batches if micro.weight for i in micro.indices
        ]
        assert tuple(seen) == reference.micro_batches[0].indices  # same samples, same order
        assert all(len(s.micro_batches) == accumulation for s in steps)
        assert all(micro.indices for s in steps for micro in s.micro_batches)
        assert sum(s.local_samples for s in steps) == reference.samples
        scale = sum(micro.weight for s in steps for micro in s.micro_batches)
        assert scale == pytest.approx(len(weights))  # a mean over ranks is a mean over samples
    every = sorted(i for step in alone for i in step.micro_batches[0].indices)
    assert every == list(range(size))


@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=60),
    batch=st.integers(1, 20),
    weights=weights,
    accumulation=st.integers(1, 3),
    pass_tokens=st.sampled_from([10.0, 1000.0]),
)
def test_by_length_a_batch_holds_the_same_samples(
    lengths, batch, weights, accumulation, pass_tokens
):
    shares = tuple(map(float, weights))
    plain = BatchPlan(len(lengths), batch, shares, accumulation, seed=7, lengths=lengths)
    cut = replace(plain, pass_tokens=pass_tokens)
    of_ranks = [list(cut.epoch(1, rank)) for rank in range(len(weights))]
    of_plain = [list(plain.epoch(1, rank)) for rank in range(len(weights))]
    assert of_ranks == [list(cut.epoch(1, rank)) for rank in range(len(weights))]
    for number in range(plain.steps_per_epoch):
        steps, same = [own[number] for own in of_ranks], [own[number] for own in of_plain]
        assert sorted(samples_of(steps)) == sorted(samples_of(same))
        assert sum(step.local_samples for step in steps) == len(samples_of(steps))
        micros = [micro for step in steps for micro in step.micro_batches]
        assert sum(micro.weight for micro in micros) == pytest.approx(len(weights))
        for micro in micros:
            longest = max(lengths[at] for at in micro.indices)
            assert micro.tokens == micro.samples * longest
        assert all(step.micro_batches for step in steps)
        for step, weight in zip(steps, weights, strict=True):
            assert weight or step.local_samples == step.local_tokens == 0


def samples_of(steps):
    return [
        at for step in steps for micro in step.micro_batches if micro.weight for at in micro.indices
    ]


def test_epochs_and_seeds_have_orders_of_their_own():
    def order(seed: int, epoch: int) -> tuple[int, ...]:
        plan = BatchPlan(50, 50, (1.0,), 1, seed)
        return next(plan.epoch(epoch, 0)).micro_batches[0].indices

    orders = {order(seed, epoch) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert order(1, 2) == order(1, 2)


def test_neighbouring_seeds_are_unrelated():
    assert len({hash_seed(a, b) for a in range(30) for b in range(30)}) == 900
    assert all(0 <= hash_seed(a) < 2**63 for a in range(100))


@given(st.integers(0, 200), st.integers(1, 9), st.integers(1, 40))
def test_evaluation_counts_every_sample_once(size, ranks, batch):
    batches = [one for rank in range(ranks) for one in evaluation_indices(size, rank, ranks, batch)]
    assert [i for one in batches for i in one] == list(range(size))
    assert all(0 < len(one) <= batch for one in batches)


@given(st.lists(st.integers(1, 50), max_size=99), st.integers(1, 9), st.integers(1, 40))
def test_evaluation_by_length_counts_every_sample_once(lengths, ranks, batch):
    of_ranks = [
        evaluation_indices(len(lengths), rank, ranks, batch, lengths) for rank in range(ranks)
    ]
    assert sorted(at for own in of_ranks for one in own for at in one) == list(range(len(lengths)))
    assert all(0 < len(one) <= batch for own in of_ranks for one in own)
    sizes = [sum(map(len, own)) for own in of_ranks]
    assert max(sizes) - min(sizes) <= 1
    for own in of_ranks:
        seen = [lengths[at] for one in own for at in one]
        assert seen == sorted(seen)
    tokens = [sum(lengths[at] for one in own for at in one) for own in of_ranks]
    assert max(tokens) - min(tokens) <= max(lengths, default=0)
