"""Every sentence is made from numbers, names one, and changes with them."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.train.cost import made
from train.cost.advice import sentences
from train.cost.algorithms import Link
from train.cost.comparison import Outcome, compare
from train.cost.fit import fit_bench
from train.cost.measured_runs import Run, read_all


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Run]:
    folder = tmp_path_factory.mktemp("study")
    for mode in ("gather_scatter", "all_reduce", "ddp"):
        made.run(folder / mode, mode, 4)
    return read_all(folder)


def warnings(runs: list[Run], alpha_s: float, bytes_per_s: float) -> Outcome:
    bench = fit_bench(made.bench(link=Link(alpha_s, bytes_per_s)), "bench")
    return compare(runs, bench, [8, 1024])


def message(runs: list[Run], alpha_s: float, bytes_per_s: float) -> list[str]:
    return sentences(warnings(runs, alpha_s, bytes_per_s))


def as_predicted(runs: list[Run], alpha_s: float, bytes_per_s: float) -> list[Run]:
    """The runs with the seconds that the model says of them."""
    outcome = warnings(runs, alpha_s, bytes_per_s)
    made_s = {one.predicted.mode: one.predicted.step_s for one in outcome.cells if one.measured_s}
    return [replace(run, steps_s=(made_s[run.mode],) * 3) for run in runs]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(alpha_s=st.floats(1e-7, 1.0), bytes_per_s=st.floats(1e4, 1e12))
def test_every_sentence_names_a_number(runs, alpha_s, bytes_per_s):
    lines = message(runs, alpha_s, bytes_per_s)
    assert len(lines) >= 6
    for line in lines:
        assert re.search(r"\d", line.replace("ddp_fp16", "")) and "\n" not in line
        assert "nan" not in line and "inf" not in line


@pytest.mark.parametrize(
    ("alpha_s", "bytes_per_s", "what"),
    [(1e-6, 1e6, "bandwidth"), (1.0, 1e12, "latency"), (1e-7, 1e12, "computing")],
)
def test_what_bounds_the_run_is_what_takes_longest(runs, alpha_s, bytes_per_s, what):
    lines = message(as_predicted(runs, alpha_s, bytes_per_s), alpha_s, bytes_per_s)
    for mode in ("gather_scatter", "all_reduce", "ddp"):
        assert any(f"{mode} on 4 workers is bound by {what}: " in line for line in lines)


def test_a_slow_network_asks_for_a_better_mode_first(runs):
    runs = as_predicted(runs, 1e-4, 117e6)
    not_all = [run for run in runs if run.mode != "all_reduce"]
    (line,) = [one for one in message(not_all, 1e-4, 117e6) if one.startswith("gather_scatter: ")]
    assert "change first to --sync ddp, predicted" in line and "times as fast" in line
    lines = message(runs, 1e-4, 117e6)
    assert any(
        one.startswith("ddp: no other mode here is clearly faster; ddp with") for one in lines
    )


def test_what_was_measured_wins_over_what_was_predicted(tmp_path):
    for mode, step_s in (("gather_scatter", 1.0), ("all_reduce", 1.5), ("ddp", 2.0)):
        made.run(tmp_path / mode, mode, 4, step_s=step_s)
    lines = message(read_all(tmp_path), 1e-4, 117e6)
    assert (
        "ddp: change first to --sync gather_scatter, measured 1 s a step, 2.00 times as fast"
        in lines
    )


def test_a_prediction_that_is_far_off_is_doubted(tmp_path):
    made.run(tmp_path / "a", "all_reduce", 4, step_s=5.0, sync_s=4.8)
    (line,) = [line for line in message(read_all(tmp_path), 1e-4, 117e6) if "took 5 s" in line]
    assert "the model says" in line and "what bounds the step is not known" in line


def test_a_fast_network_is_left_alone(runs):
    lines = message(as_predicted(runs, 1e-7, 1e12), 1e-7, 1e12)
    assert sum("another network does not" in line for line in lines) == 3


def test_imbalance_is_named_with_its_size(tmp_path):
    made.run(tmp_path / "a", "all_reduce", 4, slow_s=0.8)
    lines = message(read_all(tmp_path), 1e-4, 1e9)
    (line,) = [line for line in lines if line.startswith("imbalance")]
    assert "in all_reduce the slowest rank computes 0.6 s" in line and "--split auto" in line


def test_runs_of_other_settings_count_for_imbalance_too(tmp_path):
    cells = []
    for name, busy in (("alone", 0), ("other", 0), ("busy", 1)):
        made.run(tmp_path / name, "ddp", 4, slow_s=0.8 * busy)
        settings = {"sync": "ddp", "nodes": 4, **({"busy": 1} if busy else {})}
        cells.append({"run_dir": name, "state": "done", "settings": settings})
    (tmp_path / "study.json").write_text(json.dumps({"cells": cells}))
    runs = read_all(tmp_path)
    assert [run.name for run in warnings(runs, 1e-4, 1e9).runs] == ["alone", "other"]
    lines = message(runs, 1e-4, 1e9)
    (line,) = [line for line in lines if line.startswith("imbalance")]
    assert "in ddp (busy) the slowest rank computes 0.6 s" in line
    lines = message(runs[:2], 1e-4, 1e9)
    (line,) = [line for line in lines if line.startswith("imbalance")]
    assert "does not bound any of the 2 runs on several workers" in line


def test_nothing_is_advised_where_the_order_may_be_chance(tmp_path):
    """Of 4.98 and 5.27 s with intervals of half a second nothing follows."""

    def advice(spread_s: float) -> list[str]:
        seconds = {"gather_scatter": 4.98, "all_reduce": 5.32, "ddp": 5.27}
        for mode, step_s in seconds.items():
            folder = tmp_path / str(spread_s) / mode
            made.run(folder, mode, 4, steps=19, spread_s=spread_s, step_s=step_s)
        lines = message(read_all(tmp_path / str(spread_s)), 1e-4, 117e6)
        return [line for line in lines if "change first" in line]

    assert advice(1.0) == []
    few = advice(0.01)
    assert len(few) == 2
    assert few[1].endswith("gather_scatter, measured 4.98 s a step, 1.06 times as fast")


def test_what_the_model_misses_far_leaves_nothing_predicted(tmp_path):
    """Of 1,024 workers after an error of 54 % on four nothing is known."""
    made.run(tmp_path / "a", "ddp", 4, step_s=1.66)
    outcome = warnings(read_all(tmp_path), 1e-4, 1e9)
    assert [cell.measured_s for cell in outcome.cells] == [1.66]
    lines = sentences(outcome)
    assert not any("1024" in line or "bound by" in line or "16 bits" in line for line in lines)
    assert not any("beyond 4 workers" in line for line in outcome.assumptions)
    (line,) = [line for line in lines if line.startswith("nothing is predicted")]
    assert "ddp on 4 workers is -" in line and "more than 15%" in line


def test_a_link_is_not_said_to_carry_more_than_it_has(tmp_path):
    """979 Mbit/s of payload pass a limit of 1 Gbit/s that counts few headers: no 1040 on a wire."""
    made.run(tmp_path / "a", "all_reduce", 4)
    cell = {"run_dir": "a", "state": "done", "settings": {"rate": "1gbit"}}
    (tmp_path / "study.json").write_text(json.dumps({"cells": [cell]}))
    (line,) = [one for one in message(read_all(tmp_path), 1e-4, 979e6 / 8) if "ring's link" in one]
    assert "1040" not in line and "carries" not in line
    assert "moved 979 Mbit/s of payload" in line and "more than the 941 Mbit/s" in line
    (line,) = [one for one in message(read_all(tmp_path), 1e-4, 900e6 / 8) if "ring's link" in one]
    assert "more than" not in line
