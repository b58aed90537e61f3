"""Seconds of a synchronisation follow the algorithm's messages and bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.cost import algorithms
from train.cost.algorithms import Link, exposed_s, payload_share, ring_all_reduce

sizes = st.floats(1.0, 1e10)
workers = st.integers(2, 4096)
links = st.builds(Link, alpha_s=st.floats(0, 0.1), bytes_per_s=st.floats(1e3, 1e11))


def test_headers_are_those_of_ethernet_and_tcp():
    assert 1 / payload_share(1500) == pytest.approx(1.062, abs=5e-4)
    assert 1 / payload_share(9000) == pytest.approx(1.010, abs=5e-4)
    assert Link.of_rate(1e9, 1500, 0).bytes_per_s == pytest.approx(117.7e6, rel=1e-3)


def test_bert_on_four_nodes_is_as_by_hand():
    """433 MB at 1 Gbit/s: 5.5 s around the ring, N times as long through a root."""
    link = Link.of_rate(1e9, 1500, 0)
    ring = ring_all_reduce(433_247_240, 4).seconds(link)
    root = algorithms.gather(433_247_240, 4).seconds(link) * 2
    assert ring == pytest.approx(1.5 * 433_247_240 * 8 / 1e9 / payload_share(1500))
    assert root / ring == pytest.approx(4)


@given(sizes, workers)
def test_the_ring_carries_less_than_twice_the_bytes_and_nears_that(size, count):
    load = ring_all_reduce(size, count)
    assert 2 * size * (1 - 1.001 / count) < load.payload_bytes < 2 * size


@given(st.sampled_from(sorted(algorithms.MEASURED)), sizes, workers, links)
def test_more_bytes_or_more_workers_never_take_less(name, size, count, link):
    def seconds(size_bytes, workers):
        parts = workers if name in ("gather", "scatter", "all_gather", "reduce_scatter") else 1
        return algorithms.MEASURED[name](size_bytes * parts, workers).seconds(link)

    assert seconds(size, count) <= seconds(size * 1.5, count)
    assert seconds(size, count) <= seconds(size, count + 1) * (1 + 1e-9)


@given(st.floats(0.001, 10), st.floats(0, 10), st.integers(1, 100))
def test_what_overlaps_is_between_the_last_bucket_and_all(comm_s, backward_s, buckets):
    left = exposed_s(comm_s, comm_s / buckets, backward_s, buckets)
    assert comm_s / buckets * (1 - 1e-9) <= left <= comm_s * (1 + 1e-9)


def test_one_bucket_overlaps_nothing():
    assert exposed_s(1.0, 1.0, 5.0, 1) == 1.0
