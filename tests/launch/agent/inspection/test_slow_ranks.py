"""A slow rank is judged by its own time between collectives, whatever its node's clock says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.agent.inspection.diagnosis import own_times, slow_ones


def arrivals(own, steps=30):
    """When ranks come to collectives that need these seconds of their own between them."""
    at, ended = {rank: {} for rank in range(len(own))}, 0.0
    for step in range(steps):
        for rank, seconds in enumerate(own):
            at[rank][step] = ended + seconds
        ended = max(one[step] for one in at.values())
    return at


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=8))
def test_own_times_are_found_again(own):
    assert own_times(arrivals(own)) == pytest.approx(dict(enumerate(own)))


def test_the_slow_one_is_named_and_how_much():
    slow = slow_ones(arrivals([0.1, 0.1, 0.1, 0.14]))
    assert slow == pytest.approx({3: 1.4})
    assert slow_ones(arrivals([0.1, 0.1, 0.11, 0.12])) == {}
    assert slow_ones(arrivals([0.0, 0.0, 0.001])) == {}  # within the clocks' error


def test_too_few_collectives_or_ranks_say_nothing():
    assert own_times(arrivals([0.1, 0.2], steps=8)) == {} and own_times({0: {1: 0.0}}) == {}
    assert own_times({0: {1: 0.0, 2: 1.0}, 1: {5: 0.0}}) == {}
