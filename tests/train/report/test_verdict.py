"""What a report says first is true: each finding is left out where it was not measured."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.train.report import folders
from tests.train.report.folders import cell, make_run, make_study, step
from train.report.data.subject import read_subject
from train.report.pages import page, sections, units, verdict


def made(path, **step_s):
    """The verdict on runs of four workers, each with its seconds per step; `single` has one."""
    folder = []
    for mode, seconds in step_s.items():
        spread = [0.98, 1.02, 1.0, 1.01, 0.99, 1.0, 1.0]
        rows = [step(1), *(step(n + 2, step_s=seconds * part) for n, part in enumerate(spread))]
        workers = 1 if mode == "single" else 4
        every = {rank: [one | {"rank": rank} for one in rows] for rank in range(workers)}
        make_run(path / mode, sync=mode, workers=workers, rows=every)
        folder.append(path / mode)
    return verdict.build(read_subject(folder))


def test_each_run_has_a_row_with_what_is_known(tmp_path):
    found = made(tmp_path, single=0.4, all_reduce=0.1, ddp=0.2)
    rows = {row["run"]: row for row in found.table.rows}
    assert rows["ddp, 4 workers"]["seconds_per_step"] == "200.0 ± 2.4 ms"
    assert rows["all_reduce, 4 workers"]["speedup"] == pytest.approx(4)
    assert rows["all_reduce, 4 workers"]["efficiency"] == pytest.approx(1)
    assert rows["single, 1 worker"]["losses"] == "reference"
    assert rows["ddp, 4 workers"]["losses"] == "equal"
    assert found.base == "Speed-up and efficiency are against single, 1 worker."
    assert found.warnings == []


def test_the_fastest_is_named_only_where_intervals_are_apart(tmp_path):
    (first, *_) = made(tmp_path / "a", all_reduce=0.1, ddp=0.2).findings
    assert first == "all_reduce is 2.00 times as fast as ddp."
    (first, *_) = made(tmp_path / "b", all_reduce=0.1, ddp=0.1001).findings
    assert "equally fast as far as was measured" in first and "times as fast" not in first


def test_runs_that_do_other_work_have_no_order(tmp_path):
    for size in (32, 64):
        make_run(tmp_path / str(size), batch_size=size)
    found = verdict.build(read_subject([tmp_path / "32", tmp_path / "64"]))
    assert not any("fast" in one for one in found.findings)


def test_losses_are_called_equal_only_where_they_are(tmp_path):
    equal = made(tmp_path / "a", single=0.4, ddp=0.2)
    assert "All losses equal those of single, 1 worker, digit for digit." in equal.findings
    rows = {rank: [step(n, rank, loss=2.0 / n) for n in range(1, 9)] for rank in range(4)}
    make_run(tmp_path / "a" / "other", sync="all_reduce", workers=4, rows=rows)
    both = read_subject([tmp_path / "a" / "single", tmp_path / "a" / "other"])
    found = verdict.build(both).findings
    assert any("differ from those of single, 1 worker by up to 1" in one for one in found)
    assert not any(one.startswith("All losses equal") for one in found)


def test_an_efficiency_that_can_hardly_be_is_warned_of(tmp_path):
    (warning,) = made(tmp_path, single=0.9, ddp=0.1).warnings
    assert warning.startswith("An efficiency above 105%") and "(single, 1 worker)" in warning


def test_runs_are_called_by_the_names_that_the_study_gives(tmp_path):
    cells = [cell("a") | {"name": "Task 1: one process"}]
    cells += [cell(one) | {"name": "Task 3: DDP"} for one in ("b", "c")]
    make_study(tmp_path, cells)
    make_run(tmp_path / "runs" / "a", sync="single", workers=1)
    for more, nodes in (("b", 2), ("c", 4)):
        make_run(tmp_path / "runs" / more, sync="ddp", workers=nodes)
    subject = read_subject([tmp_path])
    # the name, and what else differs among runs of that name
    assert [entry.label for entry in subject.entries] == [
        "Task 1: one process", "Task 3: DDP, 2 workers", "Task 3: DDP, 4 workers",
    ]  # fmt: skip


def test_the_page_begins_with_it_and_its_contents_lead_to_sections(tmp_path):
    make_run(tmp_path / "run", more=[folders.evaluation(10, accuracy=0.5)])
    subject = read_subject([tmp_path / "run"])
    text = page.html(subject, sections.build(subject))
    assert 0 < text.index('class="verdict"') < text.index("<h2")
    assert '<a href="#seconds-per-iteration">' in text
    assert '<h2 id="seconds-per-iteration">' in text
    links = re.findall('<a href="#([^"]+)">', text)
    assert {"hardware", "repeat"} <= set(links)
    assert all(text.count(f'id="{link}"') == 1 for link in links)
    assert page.markdown(subject, sections.build(subject)).index("| run") > 0


def test_seconds_read_well():
    assert units.duration(0.006735) == "6.73 ms"
    assert units.duration(4.3701) == "4.37 s"
    assert units.with_interval(0.0067351, 0.00662, 0.00685) == "6.74 ± 0.12 ms"
    assert units.with_interval(4.37, 4.30, 4.44) == "4.370 ± 0.070 s"
    assert units.with_interval(0.1, None, None) == "100 ms"


def test_link_rates_are_written_as_people_write_them():
    assert units.link_rate("1gbit") == "1 Gbit/s"
    assert units.link_rate("2.5gbit") == "2.5 Gbit/s"
    assert units.link_rate("100mbit") == "100 Mbit/s"
    assert units.link_rate("9600bit") == "9600 bit/s"
    assert units.link_rate("unlimited") == "unlimited"


@given(st.floats(1e-6, 1e4), st.floats(1e-9, 1e3))
def test_an_interval_is_written_with_two_digits(mean_s, half_s):
    text = units.with_interval(mean_s, mean_s - half_s, mean_s + half_s)
    assert text.endswith("s")
    if "±" in text:
        scale = 1 if text.endswith(" s") else 1e3
        written = float(text.split("±")[1].split()[0]) / scale
        assert written == pytest.approx(half_s, rel=0.06)
