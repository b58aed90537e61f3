"""Whatever a run folder contains, its report has no impossible numbers.

The reports are of random records: missing files and fields; values that are not finite, negative
or of another type; one step, one run, a hundred runs; other people's programs.
"""

import json
import math
import re

import pytest
from hypothesis import example
from hypothesis import strategies as st

from muster.writing import write_json
from tests.fuzzing import fuzzed
from tests.train.report import folders
from tests.train.report.folders import cell, make_run, make_study, step, write_records
from train.report.data.frames import records
from train.report.data.quantities import FEWEST_FOR_INTERVAL, MOST_EFFICIENCY
from train.report.data.reader import numbers
from train.report.data.subject import read_subject
from train.report.pages import drawing, page, plots, sections, verdict

pytestmark = pytest.mark.slow

# Values that a field may have besides the right ones.
ODD = [None, math.nan, math.inf, -math.inf, -1, -0.25, 0, 0.0, 1e-300, 1e300, 10**30, 2**62, True]
ODD += ["", "x", "nan", "-1", [], [1], {}, {"x": math.nan}]
ODD_SETTINGS = [value for value in ODD if value != "nan"]  # a text is shown as it was set
FILES = ["config.yaml", "summary.json", "launch.json", "job.json", "exit.json", "environment"]
FILES += ["exits", "metrics/rank_00000.jsonl", "metrics/rank_00001.jsonl"]
MODES = ["single", "ddp", "ddp", "all_reduce", "local_sgd", "accelerate", "zero1", "?"]
RECORDS = {
    "step": step(1),
    "eval": folders.evaluation(1, accuracy=0.5, eval_loss=0.7),
    "checkpoint": folders.checkpoint(1, 0.1),
    "split": folders.split(1, [32, 32], 1.1),
    "traffic": folders.traffic(1),
}
GONE = "gone"  # instead of a value: the field is missing
NORMAL = {"mode": "ddp", "workers": 2, "steps": 9, "step_s": 0.1, "noise": [0.0], "evals": 1}
NORMAL |= {"odd": [], "lost": [], "summary": {}, "is_foreign": False, "batch": 64, "seed": 1}


@st.composite
def runs_of(draw):
    """Draw whether the runs are a study, and their descriptions for `folder_of`."""
    kinds = st.sampled_from([*RECORDS, "step", "step", "eval"])

    def odd():
        kind = draw(kinds)
        field = draw(st.sampled_from(sorted(RECORDS[kind])))
        return kind, field, draw(st.sampled_from([*ODD, GONE])), draw(st.integers(0, 3))

    numbers_of_runs = st.sampled_from([1, 1, 2, 3, 5])
    return draw(st.booleans()), [
        {
            "mode": draw(st.sampled_from(MODES)),
            "workers": draw(st.integers(1, 4)),
            "steps": draw(st.sampled_from([0, 1, 2, 3, 4, 5, 9])),
            "step_s": draw(st.sampled_from([1e-9, 0.001, 0.1, 0.1, 2.0, 1e5])),
            "noise": draw(st.lists(st.floats(-0.99, 30.0), min_size=1, max_size=4)),
            "evals": draw(st.integers(0, 4)),
            "odd": [odd() for _ in range(draw(st.integers(0, 4)))],
            "lost": draw(st.lists(st.sampled_from(FILES), max_size=2)),
            "summary": draw(st.dictionaries(
                st.sampled_from(["world_size", "train_samples", "sync", "step_s", "task"]),
                st.sampled_from(ODD_SETTINGS), max_size=2,
            )),
            "is_foreign": draw(st.booleans()),
            "batch": draw(st.sampled_from([64, 64, 128, *ODD_SETTINGS])),
            "seed": draw(st.sampled_from([1, 2, None])),
        }
        for _ in range(draw(numbers_of_runs))
    ]  # fmt: skip


def folder_of(path, of_run):
    """Make a run folder from a description that `runs_of` has drawn."""
    noise = of_run["noise"]
    rows = {}
    for rank in range(of_run["workers"]):
        rows[rank] = [
            step(n, rank, step_s=of_run["step_s"] * (1 + noise[n % len(noise)]))
            for n in range(1, of_run["steps"] + 1)
        ]
        for n in range(1, of_run["evals"] + 1):
            metrics = folders.evaluation(n, accuracy=0.1 * n, eval_loss=1 / n)
            rows[rank].append(metrics | {"eval_s": 0.5 * (1 + noise[n % len(noise)])})
        rows[rank] += [folders.checkpoint(3, 0.1), folders.traffic(1), folders.split(1, [1], 1.0)]
        for kind, field, value, every in of_run["odd"]:
            for row in [row for row in rows[rank] if row["kind"] == kind][every :: every + 1]:
                row.pop(field, None)
                if value != GONE:
                    row[field] = value
    config = {"batch_size": of_run["batch"], "seed": of_run["seed"], "local_steps": 2}
    make_run(path, sync=of_run["mode"], workers=of_run["workers"], rows={}, **config)
    for rank, own in rows.items():
        write_records(path, rank, own)
    summary = {"sync": of_run["mode"], "world_size": of_run["workers"], "train_samples": 1000}
    write_json(path / "summary.json", json.loads(json.dumps(summary | of_run["summary"])))
    if of_run["is_foreign"]:
        (path / "config.yaml").write_text("program: [train.py]\nnodes: 2\n")
    for name in of_run["lost"]:
        lost = path / name
        for file in [*lost.rglob("*"), lost] if lost.is_dir() else [lost]:
            if file.is_file():
                file.unlink()
    return path


@pytest.fixture
def without_drawings(monkeypatch):
    """Leave out drawing, which takes most of the time; panels and bars are still made."""
    monkeypatch.setattr(plots, "lines", lambda rows, *more: "")
    monkeypatch.setattr(plots, "bars", lambda name, sizes, *more, **how: {name: ""})
    monkeypatch.setattr(drawing, "alone", lambda svg: svg)


def subject_with(runs, **changes):
    """Describe, for `example`, a number of runs that are normal apart from `changes`."""
    return False, [NORMAL | changes | {"workers": 1 + n % 4} for n in range(runs)]


@fuzzed(runs_of(), examples=10)
@example(subject_with(100))
@example(subject_with(1, steps=1, evals=3, noise=[0.0, 2.0, -0.9]))
@example(subject_with(2, noise=[0.0, -0.9, 30.0]))
@example(subject_with(2, odd=[("step", "step_s", -0.25, 2), ("step", "sync_s", -1, 0)]))
@example(subject_with(2, is_foreign=True, lost=["summary.json", "launch.json"]))
@example(subject_with(3, noise=[0.0]))
def test_no_report_of_any_records_has_a_number_that_cannot_be(
    tmp_path_factory, without_drawings, runs
):
    is_study, described = runs
    top = tmp_path_factory.mktemp("random")
    made = [folder_of(top / "runs" / str(n), one) for n, one in enumerate(described)]
    if is_study:
        cells = [cell(path.name, settings={"rate": "1gbit"} if n else {}) for n, path in
                 enumerate(made)]  # fmt: skip
        made = [make_study(top, cells)]
    subject = read_subject(made)
    parts = sections.build(subject)
    head = verdict.build(subject)
    for table in [head.table, *(t for part in parts for t in (part.table, *part.data.values()))]:
        assert_numbers_can_be(table)
        assert_gains_have_a_base(table)
    text = page.markdown(subject, parts)
    assert_no_efficiency_is_above_the_limit(text)
    for shown in (text, page.html(subject, parts)):
        assert_no_cell_is_forbidden(shown)


def assert_numbers_can_be(table):
    for row in records(table):
        for column, value in row.items():
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            assert math.isfinite(value), (column, row)
            is_quantity = re.search(r"(?<!per)_(s|ms|bytes|share)$|samples|_per_s", column)
            assert not is_quantity or value >= 0, (column, row)
            assert not column.endswith("_share") or value <= 1, (column, row)
        if "mean_s" in row and row.get("low_s") is not None:
            assert row["low_s"] <= row["mean_s"] <= row["high_s"], row
            count = row["steps"] if row.get("runs", 1) == 1 else row["runs"]
            assert count >= FEWEST_FOR_INTERVAL, row
        if row.get("low_s") is not None and "evaluations" in row:
            assert row["evaluations"] >= FEWEST_FOR_INTERVAL, row


def assert_gains_have_a_base(table):
    for row in records(table):
        for name in ("base", "against"):
            if name in row and row.get("speedup") is not None:
                assert row[name] and row[name] != row["run"], row


def assert_no_cell_is_forbidden(text):
    cells = re.findall(r"<td[^>]*>([^<]*)</td>|(?<=\|) ([^|\n]*?) *(?=\|)", text)
    for value in (one or other for one, other in cells):
        value = value.strip()
        assert value.lower() not in ("nan", "inf", "-inf", "none", "nat", "<na>"), value
        assert not re.fullmatch(r"-[0-9.e+]+( ±.*)? (s|ms|MiB)", value), value


def assert_no_efficiency_is_above_the_limit(text):
    for table in shown_tables(text):
        shown = [row.get("efficiency", "-") for row in table]
        known = numbers(float(cell.rstrip("%")) / 100 for cell in shown if cell != "-")
        assert max(known, default=0) <= MOST_EFFICIENCY + 0.001


def shown_tables(text):
    """Yield the tables of a Markdown report, each as rows of cells by heading."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = [[c.strip() for c in line[1:-2].split("|")] for line in block.splitlines()]
        yield [dict(zip(head, row, strict=True)) for row in rows]
