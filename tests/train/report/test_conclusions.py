"""A finding is said where it was measured, and not where it was not."""

import pytest

from tests.train.report import folders
from tests.train.report.folders import make_run, step
from train.report.data import event_tables, tables
from train.report.data.subject import read_subject
from train.report.data.tables import Table
from train.report.pages import conclusions, sentences, verdict


def subject_of(path, **runs):
    """Runs by name: the settings and records of each, for `make_run`."""
    for name, raw in runs.items():
        make_run(path / name, **raw)
    return read_subject([path / name for name in runs])


def row(run, mean_s, half_s, **more):
    known = {"low_s": mean_s - half_s, "high_s": mean_s + half_s} if half_s is not None else {}
    return (
        {"run": run, "mean_s": mean_s, "low_s": None, "high_s": None, "workers": 2} | known | more
    )


@pytest.fixture
def plain(tmp_path):
    return subject_of(tmp_path / "plain", a={}, b={"sync": "all_reduce"})


def test_the_fastest_is_faster_than_all_others_and_not_than_the_next_alone(plain):
    apart = [row("a", 1.0, 0.1), row("b", 1.5, 0.1), row("c", 3.0, 0.1)]
    told = conclusions.fastest(apart, plain)
    assert told.startswith("a is the fastest: 1.50 times as fast as b, 3.00 times as fast as c.")
    uneven = [row("a", 1.0, 0.1), row("b", 1.5, 0.1), row("c", 3.0, 2.5)]
    assert "is the fastest" not in conclusions.fastest(uneven, plain)
    assert "a and c are equally fast as far as was measured" in conclusions.fastest(uneven, plain)


def test_among_many_that_overlap_none_is_the_fastest(plain):
    rows = [row("a", 1.0, 0.2), row("b", 1.1, 0.2), row("c", 1.2, 0.2), row("d", 9.0, 0.2)]
    told = conclusions.fastest(rows, plain)
    assert told.startswith("No run is clearly the fastest: the 95 % intervals of b, c overlap")
    assert told.endswith("d takes 9.00 times as long.")
    assert "as long" not in conclusions.fastest(rows[:3], plain)


def test_without_an_interval_nothing_is_the_fastest(plain):
    assert conclusions.fastest([row("a", 1.0, 0.1), row("b", 5.0, None)], plain) == ""


def test_most_samples_per_second_are_those_of_a_run_whose_interval_is_apart():
    slow = row("a", 2.0, 0.1, samples_per_s=10.0)
    fast = row("b", 4.0, 0.1, samples_per_s=20.0)  # of a larger batch
    assert conclusions.most_samples([slow, fast]) == "b does the most samples per second: 20."
    near = row("c", 2.0, 0.2, samples_per_s=19.0)
    told = conclusions.most_samples([slow, fast, near])
    assert told.endswith("their 95 % intervals overlap: b, c.")
    assert "No run clearly" in conclusions.most_samples([fast, near])
    assert conclusions.most_samples([fast]) == ""
    assert conclusions.most_samples([fast, row("d", 1.0, None, samples_per_s=1.0)]) == ""


def of_metrics(*rows):
    table = Table("metrics", "")
    for run, step_, value in rows:
        table.add(run=run, step=step_, metric="accuracy", value=value)
    return conclusions.metrics(table)


def test_metrics_are_the_same_only_where_runs_were_evaluated_at_the_same_step():
    assert "have the same accuracy" in of_metrics(("a", 1, 0.5), ("a", 2, 0.75), ("b", 1, 0.5))
    assert of_metrics(("a", 1, 0.5), ("b", 2, 0.5)) == ""
    apart = of_metrics(("a", 1, 0.5), ("b", 1, 0.5), ("a", 2, 0.5), ("b", 2, 0.75))
    assert apart == "At the same step, accuracy differs by at most 0.25 (step 2)."
    assert of_metrics(("a", 1, 0.5), ("a", 9, 0.25)) == (
        "accuracy is 0.5 at step 1 and 0.25 at step 9."
    )


def test_a_plan_that_was_no_gain_is_not_called_one(tmp_path):
    rows = [step(n, step_s=0.1 if n <= 10 else 0.2) for n in range(1, 21)]
    subject = subject_of(
        tmp_path, a={"rows": {0: rows, 1: rows}, "more": [folders.split(10, [48, 16], 1.8)]}
    )
    (told,) = sentences.of_balance(event_tables.balance(subject))
    assert "promised 1.80 times" in told and "were 0.50 times as fast as those before it" in told


def test_of_a_plan_without_steps_after_it_nothing_is_said(tmp_path):
    subject = subject_of(tmp_path, a={"more": [folders.split(99, [48, 16], 1.8)]})
    assert sentences.of_balance(event_tables.balance(subject)) == []


def test_of_checkpoints_that_stopped_nobody_no_longest_is_named(tmp_path):
    subject = subject_of(tmp_path, a={"more": [folders.checkpoint(10, 0.0)]})
    assert sentences.of_checkpoints(event_tables.checkpoints(subject)) == []


def test_that_no_run_waits_is_said_of_runs_that_are_all_on_record(plain):
    known, unknown = row("a", 1.0, 0.1, exposed_s=0.05), row("b", 1.0, 0.1, exposed_s=None)
    assert conclusions.waiting([known]).startswith("No run waits more than 10%")
    assert conclusions.waiting([known, unknown]) == ""
    alone = row("single", 1.0, 0.1, exposed_s=None, workers=1)
    assert conclusions.waiting([known, alone]).startswith("No run waits")
    long = row("c", 1.0, 0.1, exposed_s=0.4)
    assert conclusions.waiting([long, unknown]) == "c waits for communication during 40% of a step."


def test_all_losses_are_equal_only_where_all_were_compared(tmp_path):
    single, ddp = {"sync": "single", "workers": 1}, {"sync": "ddp"}
    equal = subject_of(tmp_path / "equal", a=single, b=ddp)
    assert conclusions.equal_losses(equal).startswith("All losses equal those of single, 1 worker")
    other = ddp | {"precision": "bf16"}
    some = conclusions.equal_losses(subject_of(tmp_path / "some", a=single, b=ddp, c=other))
    assert "those of 1 run." in some and "without a reference: 1." in some and "All" not in some
    assert conclusions.equal_losses(subject_of(tmp_path / "none", a=single, c=other)) == ""


def test_losses_that_part_are_told_with_the_step(tmp_path):
    moved = [step(n, loss=1.0 / n + (0.5 if n >= 5 else 0.0)) for n in range(1, 9)]
    subject = subject_of(
        tmp_path, a={"sync": "single", "workers": 1}, b={"rows": {0: moved, 1: moved}}
    )
    told = conclusions.equal_losses(subject)
    assert told.endswith("by up to 0.5; by more than 0.001 first at step 5.")


def test_a_loss_that_is_no_number_equals_none(tmp_path):
    broken = [step(n, loss=1.0 / n if n < 5 else float("nan")) for n in range(1, 9)]
    subject = subject_of(
        tmp_path, a={"sync": "single", "workers": 1}, b={"rows": {0: broken, 1: broken}}
    )
    told = conclusions.equal_losses(subject)
    assert "is no number at step 5" in told and "equal" not in told
    by_run = {one["run"]: one["losses"] for one in verdict.build(subject).table.rows}
    assert by_run["ddp, 2 workers"] == "not a number"
    lines = sentences.of_losses(tables.first_losses(subject), subject)
    assert not any(line.endswith("at every step.") for line in lines)


def test_dropout_is_not_blamed_where_both_runs_draw_the_same_masks(tmp_path):
    first = [step(n, loss=1.0 / n) for n in range(1, 5)]
    later = [step(n, loss=2.0 / n) for n in range(1, 5)]
    for name, workers, blamed in (("same", 2, False), ("other", 4, True)):
        runs = {
            "a": {"sync": "ddp", "rows": {0: first, 1: first}},
            "b": {"sync": "all_reduce", "workers": workers},
        }
        runs["b"]["rows"] = dict.fromkeys(range(workers), later)
        subject = subject_of(tmp_path / name, **runs)
        lines = sentences.of_losses(tables.first_losses(subject), subject)
        assert any("masks" in line for line in lines) is blamed


def test_a_row_of_repeats_has_their_means_and_the_furthest_losses(tmp_path):
    base = {"sync": "single", "workers": 1}
    far = [step(n, loss=1.0 / n + 0.5) for n in range(1, 21)]
    runs = {"a": base, "b": {}, "c": {"rows": {0: far, 1: far}}}
    table = verdict.build(subject_of(tmp_path, **runs)).table
    (two,) = table.select(run="ddp, 2 workers")
    assert two["final_loss"] == pytest.approx(1 / 20 + 0.25)
    assert two["losses"] == "within 0.5 of single"


def test_a_run_that_failed_has_a_row_that_says_so(tmp_path):
    subject = subject_of(
        tmp_path,
        a={"sync": "single", "workers": 1},
        b={"rows": {}, "end": {"code": 1, "message": "no memory"}},
    )
    rows = {one["run"]: one for one in verdict.build(subject).table.rows}
    assert rows["ddp, 2 workers"]["state"] == "failed (1)"
    assert rows["ddp, 2 workers"]["seconds_per_step"] is None
    whole = verdict.build(subject_of(tmp_path / "whole", a={}, b={"sync": "all_reduce"})).table
    assert "state" not in whole.columns


def test_runs_that_only_evaluate_have_the_seconds_of_that(tmp_path):
    rows = [folders.evaluation(0, accuracy=0.5)]
    table = verdict.build(subject_of(tmp_path, a={"rows": {0: rows, 1: rows}, "epochs": 0})).table
    (one,) = table.rows
    assert one["seconds_per_evaluation"] == "500 ms" and one["accuracy"] == 0.5
    assert one["evaluated_samples_per_s"] == pytest.approx(200)
