"""A report's tables can be made from its records with pandas alone, as docs/report.md does."""

import re

import pytest

from tests.pages import DOCS
from tests.train.report.folders import (
    cell,
    evaluation,
    make_run,
    make_study,
    step,
    subject_of,
    write_records,
)  # fmt: skip
from train.report.data import tables
from train.report.data.frames import records
from train.report.data.subject import read_subject

PAGE = DOCS / "report.md"


def test_the_example_of_the_page_prints_the_seconds_of_the_report(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "logs" / "studies" / "quick"
    cells = []
    for sync, seed in (("ddp", 1), ("ddp", 2), ("all_reduce", 1)):
        name = f"{sync}-{seed}"
        make_run(folder / "runs" / name, sync=sync, seed=seed, step_s=0.1 * seed)
        cells.append(cell(name))
    make_study(folder, cells, x="workers", series=["sync"])
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.strip().splitlines()) <= 11  # one of them is empty
    names: dict[str, object] = {}
    exec(code, names)
    printed = capsys.readouterr().out
    assert "ddp" in printed and "0.15" in printed
    table = {row["run"]: row["mean_s"] for row in records(tables.seconds(names["subject"]))}
    found = names["of_runs"].groupby("label").mean()
    assert dict(found) == pytest.approx(table)


def test_runs_have_settings_ends_seconds_losses_and_metrics(tmp_path):
    more = [evaluation(20, accuracy=0.75)]
    subject = subject_of(tmp_path, a={"sync": "single", "workers": 1}, b={"lr": 0.3, "more": more})
    rows = {row["sync"]: row for row in records(subject.runs)}
    assert (rows["ddp"]["lr"], rows["ddp"]["accuracy"]) == (0.3, 0.75)
    assert rows["ddp"]["step_s"] == pytest.approx(0.1)
    assert rows["ddp"]["samples_per_s"] == pytest.approx(640)
    assert rows["ddp"]["last_batch_loss"] == pytest.approx(1 / 20)
    assert rows["single"]["state"] == "done" and rows["single"]["accuracy"] is None


def test_step_rows_are_per_rank_and_first_step_is_untimed(tmp_path):
    rows = [step(n) for n in range(1, 4)]
    table = subject_of(tmp_path, {"rows": rows}).steps
    assert len(table) == 6 and set(table["rank"]) == {0, 1}
    timed = table[table["is_timed"] & table["is_lead"]]
    assert list(timed["step"]) == [2, 3] and set(timed["rank"]) == {0}


def test_a_run_without_steps_has_a_row(tmp_path):
    subject = subject_of(tmp_path, {"rows": {}, "end": {"code": 1, "message": "no memory"}})
    (row,) = records(subject.runs)
    assert (row["state"], row["step_s"], row["steps"]) == ("failed (1)", None, None)
    assert not len(subject.steps)


def test_setting_and_scheduled_rate_of_a_step_are_two_columns(tmp_path):
    rows = [step(n, lr=0.1 / n) for n in range(1, 4)]
    subject = subject_of(tmp_path, {"lr": 0.1, "rows": rows}, {"lr": 0.2, "rows": rows})
    steps = subject.steps[subject.steps["is_lead"]]
    assert dict(steps.groupby("lr").size()) == {0.1: 3, 0.2: 3}
    assert list(steps["scheduled_lr"][:3]) == pytest.approx([0.1, 0.05, 0.1 / 3])


def test_a_later_attempt_replaces_what_came_after_its_checkpoint(tmp_path):
    path = make_run(tmp_path / "run", rows={0: [step(n, loss=2.0) for n in (3, 4)]}, workers=1)
    (path / "attempts" / "0").mkdir(parents=True)
    first = [step(n, loss=1.0) for n in range(1, 7)]
    write_records(path / "attempts" / "0", 0, first)
    steps = read_subject([path]).steps
    kept = steps[steps["is_kept"]]
    assert dict(zip(kept["step"], kept["loss"], strict=True)) == {1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0}
    assert list(steps[steps["is_timed"]]["step"]) == [4]  # not the first step of an attempt
