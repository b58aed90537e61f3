"""The split is the one that no other beats, and the line is the one that was measured."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.batches.auto_split.step_cost import Cost, best_weights, compute_s, fit, memory_limit
from train.batches.plan import split_batch

COSTS = st.lists(st.builds(Cost, st.floats(0, 0.5), st.floats(1e-3, 1.0)), min_size=1, max_size=6)


@given(st.floats(0, 1), st.floats(1e-4, 1), st.lists(st.integers(1, 64), min_size=2, unique=True))
def test_a_line_is_found_again(alpha, beta, sizes):
    found = fit(sizes, [alpha + beta * n for n in sizes])
    assert found.alpha_s == pytest.approx(alpha, abs=1e-6, rel=1e-4)
    assert found.beta_s == pytest.approx(beta, abs=1e-6, rel=1e-4)


def test_noise_makes_nothing_negative():
    falling = fit([4, 8, 16], [3.0, 2.0, 1.0])
    assert falling.alpha_s >= 0 and falling.beta_s > 0
    steep = fit([4, 8, 16], [0.1, 1.0, 10.0])
    assert steep.alpha_s >= 0 and steep.beta_s > 0
    assert fit([3], [6.0]) == Cost(0.0, 2.0)


@given(COSTS, st.integers(1, 300))
def test_all_samples_are_given_and_all_who_have_some_end_together(costs, batch_size):
    weights = best_weights(costs, batch_size)
    assert sum(weights) == pytest.approx(batch_size) and min(weights) >= 0
    ends = [cost.alpha_s + cost.beta_s * n for cost, n in zip(costs, weights, strict=True) if n > 0]
    assert max(ends) == pytest.approx(min(ends), rel=1e-6)
    idle = [cost.alpha_s for cost, n in zip(costs, weights, strict=True) if n == 0]
    assert all(alpha_s >= max(ends) - 1e-9 for alpha_s in idle)


@given(st.lists(st.builds(Cost, st.floats(0, 0.5), st.floats(1e-3, 1.0)), min_size=2, max_size=3))
def test_no_other_split_is_faster_by_more_than_a_sample(costs):
    batch_size = 12
    own = compute_s(costs, best_weights(costs, batch_size), batch_size)
    every = (
        parts
        for parts in itertools.product(range(batch_size + 1), repeat=len(costs))
        if sum(parts) == batch_size
    )
    best = min(max(cost.of(n) for cost, n in zip(costs, parts, strict=True)) for parts in every)
    assert own <= best + max(cost.beta_s for cost in costs) + 1e-9


def test_half_the_speed_is_half_the_samples():
    costs = [Cost(0.0, 0.01), Cost(0.0, 0.02), Cost(0.0, 0.01), Cost(0.0, 0.01)]
    assert split_batch(64, best_weights(costs, 64)) == [19, 9, 18, 18]


def test_a_slow_start_leaves_a_rank_out():
    assert best_weights([Cost(0.0, 0.01), Cost(5.0, 0.01)], 10) == (10.0, 0.0)


@pytest.mark.parametrize(
    ("used", "free", "limit"),
    [([100.0, 120.0, 160.0], 1000.0, 72), ([50.0, 50.0, 50.0], 10.0, 0), ([9.0, 8.0, 7.0], 1.0, 0)],
)
def test_memory_is_followed_up_from_what_was_measured(used, free, limit):
    # 10 bytes a sample on top of 80: 0.8 * 1000 holds 72
    assert memory_limit([2, 4, 8], used, free) == limit
