"""What was put in comes out of the fit, through noise, and bounds say how far to trust it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import UsageError
from tests.train.cost import made
from train.cost.algorithms import MEASURED, Link
from train.cost.fit import ComputePoint, fit_bench, fit_compute, fit_link


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(MEASURED)),
    st.integers(2, 16),
    st.floats(1e-6, 5e-3),
    st.floats(1e7, 1e10),
    st.randoms(use_true_random=False),
)
def test_latency_and_bandwidth_are_recovered_from_noisy_times(name, workers, alpha, rate, rng):
    link = Link(alpha, rate)
    # sizes on both sides of where latency and bytes cost the same, as a bench must have them
    turn = alpha * rate * workers
    sizes = [max(4.0, turn * 2.0**power) for power in range(-8, 9)]
    times = [
        MEASURED[name](size, workers).seconds(link) * rng.uniform(0.95, 1.05) for size in sizes
    ]
    rows = [(size, time, time) for size, time in zip(sizes, times, strict=True)]
    found = fit_link(name, rows, workers)
    assert found.link.alpha_s == pytest.approx(alpha, rel=0.15)
    assert found.link.bytes_per_s == pytest.approx(rate, rel=0.15)
    assert found.relative_error <= 0.06


def test_the_uncertainty_is_that_of_the_noise():
    """Over many draws, the truth is within two standard errors about as often as it should be."""
    rng, inside, draws = random.Random(1), 0, 300
    link = Link(2e-4, 1e8)
    for _ in range(draws):
        exact = [MEASURED["all_reduce"](size, 4).seconds(link) for size in made.SIZES]
        times = [time * rng.gauss(1, 0.05) for time in exact]
        rows = [(size, time, time) for size, time in zip(made.SIZES, times, strict=True)]
        found = fit_link("all_reduce", rows, 4)
        inside += abs(found.link.alpha_s - link.alpha_s) < 2 * found.alpha_se_s
    assert 0.85 < inside / draws < 0.99


def test_latency_that_overlaps_the_bytes_is_noticed_and_recovered():
    link = Link(2e-4, 1e8, overlap=2.0)
    times = [MEASURED["all_reduce"](size, 4).seconds(link) for size in made.SIZES]
    found = fit_link("all_reduce", list(zip(made.SIZES, times, times, strict=True)), 4)
    assert found.link.overlap == 2.0 and found.relative_error < 1e-6
    assert (found.link.alpha_s, found.link.bytes_per_s) == pytest.approx((2e-4, 1e8))


def test_a_point_whose_rounds_differ_counts_less():
    link = Link(2e-4, 1e8)
    times = [MEASURED["gather"](size, 4).seconds(link) for size in made.SIZES]
    rows = list(zip(made.SIZES, times, times, strict=True))
    rows[0] = (rows[0][0], times[0] * 3, times[0] * 0.9)
    found = fit_link("gather", rows, 4)
    assert found.link.alpha_s == pytest.approx(2e-4, rel=0.01)


def test_a_bench_is_fitted_collective_by_collective():
    bench = fit_bench(made.bench(), "collectives.json")
    assert set(bench.fits) == set(MEASURED) and bench.workers == bench.nodes == 4
    for fit in bench.fits.values():
        assert fit.link.alpha_s == pytest.approx(made.LINK.alpha_s)
        assert fit.link.bytes_per_s == pytest.approx(made.LINK.bytes_per_s)
    assert bench.wire_mbit_s("gather") == pytest.approx(117e6 * 8e-6 * 1538 / 1448)


def test_a_collective_that_was_not_measured_takes_its_nearest_kin():
    bench = fit_bench(made.bench(operations=("sendrecv", "scatter")), "x")
    assert bench.of("gather") is bench.fits["scatter"]
    assert bench.of("all_reduce") is bench.fits["sendrecv"]


def test_another_network_is_its_rate_less_the_headers():
    bench = fit_bench(made.bench(), "x").at_rate(10_000)
    assert bench.wire_mbit_s("gather") == pytest.approx(10_000)
    assert bench.of("gather").link.alpha_s == pytest.approx(made.LINK.alpha_s)


@pytest.mark.parametrize(
    "lines", [[], {}, {"hosts": ["a"]}, {**made.bench(), "collectives": [{"name": "gather"}]}]
)
def test_another_file_is_refused_by_its_name(lines):
    with pytest.raises(UsageError, match=r"^here\.json: not a collectives"):
        fit_bench(lines, "here.json")


def test_one_size_is_not_enough():
    lines = made.bench()
    lines["collectives"] = lines["collectives"][:1]
    with pytest.raises(UsageError, match="two sizes"):
        fit_bench(lines, "x")


def point(samples: int, per_sample_s: float, start_s: float = 0.0) -> ComputePoint:
    total = start_s + samples * per_sample_s
    return ComputePoint(4, samples, 0.0, total / 3, total * 2 / 3, 0.02)


@given(st.floats(1e-5, 1.0), st.floats(0.0, 1.0))
def test_computing_is_recovered_from_several_sizes(per_sample_s, start_s):
    found = fit_compute([point(size, per_sample_s, start_s) for size in (1, 2, 8, 32)])
    assert found.per_sample_s == pytest.approx(per_sample_s, rel=1e-3)
    assert found.constant_s == pytest.approx(start_s + 0.02, rel=1e-3, abs=1e-6)
    assert found.seconds(8) == pytest.approx(start_s + 8 * per_sample_s + 0.02, rel=1e-6)
    assert found.backward_share == pytest.approx(2 / 3)


def test_from_one_size_all_but_the_optimizer_grows_with_the_samples():
    found = fit_compute([point(4, 0.1)] * 3)
    assert (found.constant_s, found.per_sample_s) == pytest.approx((0.02, 0.1))
    assert found.sizes == (4,) and found.backward_s(4) == pytest.approx(0.4 * 2 / 3)
