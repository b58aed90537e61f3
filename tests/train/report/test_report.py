"""A report has all forms, texts and tables, on a screen and on paper."""

import csv
import re
import subprocess
import sys

import pytest
from hypothesis import strategies as st

from muster.checkout import CHECKOUT
from muster.writing import write_json
from tests.commands import call, refused
from tests.damaged_records import damaged_record
from tests.fork_server import skip_if_quick
from tests.fuzzing import fuzzed
from tests.train.report import folders
from tests.train.report.folders import evaluation, make_run, make_study, step
from tests.train.report.studies import MODES, course_study, full_study
from tests.written import write
from train.report import __main__ as command
from train.report.data.frames import records
from train.report.data.subject import read_subject
from train.report.pages import drawing, page, plots, sections


def report(*argv: object) -> subprocess.CompletedProcess[str]:
    return call(sys.executable, "-m", "train.report", *argv, cwd=CHECKOUT)


def test_the_command_writes_all_forms_and_prints_the_tables_if_asked(tmp_path):
    skip_if_quick()
    study = full_study(tmp_path / "study")
    done = report(study)
    assert done.returncode == 0, done.stderr
    assert "## " not in done.stdout and "| run" in done.stdout
    small = make_run(tmp_path / "small")
    asked = report(small, "--print")
    assert asked.returncode == 0, asked.stderr
    assert (small / "report" / "report.md").read_text() in asked.stdout
    assert "## Seconds per iteration" in asked.stdout
    folder = study / "report"
    names = {file.name for file in (folder / "data").iterdir()}
    wanted = "losses seconds speedup traffic collectives balance checkpoints failures"
    for name in wanted.split():
        assert {f"{name}.csv", f"{name}.json"} <= names
    with (folder / "data" / "seconds.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = sorted(float(row["mean_s"]) for row in rows)
    assert found == pytest.approx(sorted(3.7 / workers for workers in MODES.values()))
    figures = {file.stem for file in (folder / "figures").iterdir()}
    assert figures >= {"first_losses", "metrics", "seconds", "speedup", "traffic"}
    assert (folder / "report.md").is_file() and (folder / "index.html").is_file()
    pdf = folder / "report.pdf"
    assert pdf.read_bytes().startswith(b"%PDF") if pdf.exists() else "install" in done.stderr


def test_the_page_holds_all_that_it_shows_and_runs_nothing(tmp_path):
    subject = read_subject([full_study(tmp_path / "study")])
    parts = page.sections.build(subject)
    text = page.html(subject, parts)
    assert re.findall(r'<script|\b(?:src|href)="(?!#)[^"]*', text) == []
    assert "&lt;script&gt;alert(1)" in text
    assert sum(bool(part.figures) for part in parts) >= 6
    assert "currentColor" in text
    assert "currentColor" not in page.html(subject, parts, ink="#000000")


def test_no_table_has_numbers_of_an_earlier_one(tmp_path):
    subject = read_subject([course_study(tmp_path / "study")])
    parts = {part.name: part for part in sections.build(subject)}
    for name in ("metrics", "speedup"):  # the first table already has all of it
        assert not parts[name].has_table and len(parts[name].table)
    assert not parts["metrics"].is_on_page and parts["speedup"].is_on_page  # with its figure
    assert {"train_s", "batch_of_each"} <= set(parts["training"].shown)
    assert not {"accuracy", "speedup"} & set(parts["training"].shown)
    text = page.html(subject, list(parts.values()))
    assert 'id="metrics"' not in text and 'id="speed-up-and-efficiency"' in text


def test_page_of_a_single_run_is_folded_and_compares_it_with_nothing(tmp_path):
    subject = read_subject([make_run(tmp_path / "run", more=[evaluation(20, accuracy=0.5)])])
    parts = sections.build(subject)
    text = page.html(subject, parts)
    before, _, folded = text.partition('<details class="rest">')
    assert before.count("<table") == 1 and before.count("<svg") == 2  # losses and seconds
    assert all(f'<h3 id="{name}' in folded for name in ("first_losses-table", "ranks"))
    for word in ("reference", "speed-up", "repeats"):
        assert word not in page.markdown(subject, parts)


BARE = [{"kind": "step", "step": number, "loss": 1.0} for number in range(1, 5)]  # no seconds


@pytest.fixture
def without_figures(monkeypatch):
    """Leave out the figures and the PDF, which take most of the time."""
    for name in ("losses", "seconds", "memory", "evaluation", "throughput", "over_x"):
        monkeypatch.setattr(plots, name, lambda *given: {})
    monkeypatch.setattr(drawing, "alone", lambda svg: svg)
    monkeypatch.setattr(page, "write_pdf", lambda *given: "")


@pytest.mark.parametrize(
    ("make", "given", "wanted", "reason"),
    [
        (make_study, {"cells": []}, set(), "study.json"),
        (
            make_run,
            {"rows": {}, "end": {"code": 1, "message": "no memory"}},
            {"runs", "failures"},
            "no memory",
        ),
        (make_run, {"rows": BARE}, {"runs"}, "step_s"),
        (make_run, {"rows": [step(1, loss=float("nan"))], "workers": 1}, {"runs"}, "What was run"),
    ],
)
def test_run_without_numbers_gives_a_report_with_the_reason(
    tmp_path, without_figures, make, given, wanted, reason
):
    parts, _ = page.write(read_subject([make(tmp_path / "made", **given)]), tmp_path)
    names = {part.name for part in parts}
    assert wanted <= names and "seconds" not in names
    for form in ("report.md", "index.html"):
        assert reason in (tmp_path / form).read_text(encoding="utf-8")


def test_texts_of_programs_are_letters_in_every_form_of_a_report(tmp_path, without_figures):
    """The text has half a character of a file name, terminal escapes, a formula and a tag."""
    words = "=1+1|caf\udce9.csv \x1b[31m <img src=x>"
    folder = make_run(
        tmp_path / "run-\udce9", workers=1, steps=2, task=words, end={"code": 1, "message": words}
    )
    exits = {"rank": 0, "host": words, "time_unix_s": 1.0, "code": 1, "cause": "crash"}
    write_json(folder / "exits" / "rank_00000.json", exits | {"message": words, "traceback": ""})
    page.write(read_subject([folder]), tmp_path / "report")
    files = [one for one in (tmp_path / "report").rglob("*") if one.suffix in (".md", ".csv")]
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert "\x1b" not in text and ("<img" not in text or file.suffix == ".csv")
    runs = (tmp_path / "report" / "data" / "runs.csv").read_text()
    assert r"'=1+1|caf\udce9.csv \x1b[31m" in runs


@st.composite
def odd_run(draw):
    """Draw the name of a damaged file of a run folder, and its content."""
    whole = {
        "launch.json": {"command": "python x", "run_id": "run", "nodes": [{"host": "a"}]},
        "job.json": {"launcher": "local", "started_unix_s": 1.0},
        "exit.json": {"code": 1, "message": "boom", "time_unix_s": 1.0, "cause": "x", "rank": 0},
        "summary.json": {"sync": "ddp", "world_size": 1},
        "config.yaml": {"task": "x", "sync": "ddp", "epochs": 2, "batch_size": 8, "seed": 1},
        "environment/node0.json": folders.ENVIRONMENT,
        "exits/rank_00000.json": {"rank": 0, "host": "a", "code": 1, "cause": "x", "message": "m"},
        "metrics/rank_00000.jsonl": folders.step(2),
        "metrics/rank_00001.jsonl": folders.evaluation(2, accuracy=0.5),
    }
    name = draw(st.sampled_from([*whole]))
    return name, draw(damaged_record(whole[name])) + b"\n" * name.endswith("jsonl")


@fuzzed(odd_run(), examples=5)
def test_no_record_ends_a_report(tmp_path_factory, without_figures, record):
    name, content = record
    folder = make_run(tmp_path_factory.mktemp("odd") / "run", workers=1, steps=3)
    write(folder, {name: content})
    subject = read_subject([folder])
    text = page.markdown(subject, sections.build(subject))
    text.encode()
    assert "\x1b" not in text and "<img" not in text


def test_without_the_librarys_parts_all_but_the_pdf_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    _, problem = page.write(read_subject([make_run(tmp_path / "run")]), tmp_path / "report")
    assert "WeasyPrint is missing" in problem and "install" in problem
    assert not (tmp_path / "report" / "report.pdf").exists()
    assert (tmp_path / "report" / "index.html").exists()


@pytest.mark.slow
@pytest.mark.needs("Pango")
def test_printed_course_report_has_its_numbers_inside_the_paper(tmp_path):
    import weasyprint  # only works with Pango

    subject = read_subject([course_study(tmp_path / "course")])
    parts = sections.build(subject)
    made = page.html(subject, parts, ink=drawing.PRINT_INK)
    pages = [
        list(one._page_box.descendants()) for one in weasyprint.HTML(string=made).render().pages
    ]
    appendix = [n for n, boxes in enumerate(pages) if any(map(is_appendix, boxes))]
    assert len(appendix) == 1 and appendix[0] <= 8
    texts = [box for boxes in pages for box in boxes if getattr(box, "text", "").strip()]
    right = (210 - 14) * 96 / 25.4  # the right edge of the text, in pixels
    assert [one.text for one in texts if one.position_x + one.width > right + 1] == []
    printed = {word for one in texts for word in one.text.split()}
    for column in page.visible_columns(records(parts[0].rows)):
        if column.is_number:
            assert {word for cell in column.cells for word in cell.split()} <= printed, column.name


def is_appendix(box) -> bool:
    element = box.element
    return element is not None and element.tag == "h2" and element.get("id") == "appendix"


@pytest.mark.parametrize(("runs", "is_long"), [(12, False), (13, True)])
def test_long_table_moves_to_appendix_and_figure_stays(tmp_path, runs, is_long):
    many = (make_run(tmp_path / str(number), seed=number) for number in range(runs))
    (losses,) = (
        one for one in sections.build(read_subject(list(many))) if one.name == "first_losses"
    )
    assert losses.in_appendix == is_long and losses.figures


def test_help_needs_neither_drawing_nor_tables_and_no_report_needs_torch():
    """lint-imports checks which of our own modules a report may import (see setup.cfg)."""
    code = "import sys, train.report.__main__; print({'scipy', 'pandas'} & {*sys.modules})\n"
    code += "from train.report.pages import page; print({'torch', 'matplotlib'} & {*sys.modules})"
    done = call(sys.executable, "-c", code, cwd=CHECKOUT)
    assert done.stdout.split() == ["set()"] * 2, done


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("logs/no-such-run", "logs/no-such-run is not a folder"),
        ("--live logs/run", "--live was removed"),
    ],
)
def test_missing_folder_and_removed_flag_are_refused(argv, message):
    error = refused(command.main, *argv.split())
    assert error.startswith(f"error: {message}") and error.count("\n") == 1
