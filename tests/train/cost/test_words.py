"""Every sentence is made from numbers, names one, and changes with them."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.train.cost import made
from train.cost.algorithms import Link
from train.cost.fit import fit_bench
from train.cost.runs import Run, read_all
from train.cost.study import compare
from train.cost.words import sentences


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Run]:
    folder = tmp_path_factory.mktemp("study")
    for mode in ("gather_scatter", "all_reduce", "ddp"):
        made.run(folder / mode, mode, 4)
    return read_all(folder)


def said(runs: list[Run], alpha_s: float, bytes_per_s: float) -> list[str]:
    bench = fit_bench(made.bench(link=Link(alpha_s, bytes_per_s)), "bench")
    return sentences(compare(runs, bench, [8, 1024]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(alpha_s=st.floats(1e-7, 1.0), bytes_per_s=st.floats(1e4, 1e12))
def test_every_sentence_names_a_number(runs, alpha_s, bytes_per_s):
    lines = said(runs, alpha_s, bytes_per_s)
    assert len(lines) >= 6
    for line in lines:
        assert re.search(r"\d", line.replace("ddp_fp16", "")) and "\n" not in line
        assert "nan" not in line and "inf" not in line


@pytest.mark.parametrize(
    ("alpha_s", "bytes_per_s", "what"),
    [(1e-6, 1e6, "bandwidth"), (1.0, 1e12, "latency"), (1e-7, 1e12, "computing")],
)
def test_what_bounds_the_run_is_what_takes_longest(runs, alpha_s, bytes_per_s, what):
    lines = said(runs, alpha_s, bytes_per_s)
    for mode in ("gather_scatter", "all_reduce", "ddp"):
        assert any(f"{mode} on 4 workers is bound by {what}: " in line for line in lines)


def test_a_slow_network_asks_for_a_better_mode_first(runs):
    not_all = [run for run in runs if run.mode != "all_reduce"]
    (line,) = [one for one in said(not_all, 1e-4, 117e6) if one.startswith("gather_scatter: ")]
    assert "change first to --sync ddp, predicted" in line and "times as fast" in line
    lines = said(runs, 1e-4, 117e6)
    assert any(one.startswith("ddp: no other mode here is faster; ddp with") for one in lines)


def test_what_was_measured_wins_over_what_was_predicted(tmp_path):
    for mode, step_s in (("gather_scatter", 1.0), ("all_reduce", 1.5), ("ddp", 2.0)):
        made.run(tmp_path / mode, mode, 4, step_s=step_s)
    lines = said(read_all(tmp_path), 1e-4, 117e6)
    assert (
        "ddp: change first to --sync gather_scatter, measured 1 s a step, 2.00 times as fast"
        in lines
    )


def test_a_prediction_that_is_far_off_is_doubted(tmp_path):
    made.run(tmp_path / "a", "all_reduce", 4, step_s=5.0, sync_s=4.8)
    (line,) = [line for line in said(read_all(tmp_path), 1e-4, 117e6) if "took 5 s" in line]
    assert "the model says" in line and "measure again" in line


def test_a_fast_network_is_left_alone(runs):
    lines = said(runs, 1e-7, 1e12)
    assert sum("another network does not" in line for line in lines) == 3


def test_imbalance_is_named_with_its_size(tmp_path):
    made.run(tmp_path / "a", "all_reduce", 4, slow_s=0.8)
    lines = said(read_all(tmp_path), 1e-4, 1e9)
    (line,) = [line for line in lines if line.startswith("imbalance")]
    assert "in all_reduce the slowest rank computes 0.6 s" in line and "--split auto" in line
