"""A report has all forms, texts and tables, on a screen and on paper."""

import csv
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import strategies as st

from muster.checkout import CHECKOUT
from muster.writing import write_json
from tests.commands import call, refused
from tests.damaged_records import damaged_record
from tests.fuzzing import fuzzed
from tests.preload import skip_if_quick
from tests.train.report import folders
from tests.train.report.folders import evaluation, make_run, make_study, step
from tests.train.report.studies import MODES, course_study, full_study
from tests.written import write
from train.report import __main__ as command
from train.report.data.frames import frame
from train.report.data.subject import read_subject
from train.report.pages import drawing, page, plots, sections

SVG = "{http://www.w3.org/2000/svg}svg"


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
    for name in ("metrics", "speedup"):  # all of it is in the first table
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
    """Figures and the PDF take most of the time."""
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
    """Half a character of a file's name, a terminal's escapes, a formula, a tag."""
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
    """A file of a run folder that was damaged, and its content."""
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
    assert "WeasyPrint is missing; install it with " in problem
    assert not (tmp_path / "report" / "report.pdf").exists()
    assert (tmp_path / "report" / "index.html").exists()


def printed(subject, parts) -> list[list]:
    """The boxes of each page on paper."""
    import weasyprint  # where Pango is

    made = page.html(subject, parts, ink=drawing.PRINT_INK)
    pages = weasyprint.HTML(string=made).render().pages
    return [list(one._page_box.descendants()) for one in pages]


@pytest.fixture(scope="module")
def on_paper(tmp_path_factory) -> dict[str, list[list]]:
    """Pages of a study of much, with tables of some lengths, and of a course's."""
    folder = tmp_path_factory.mktemp("printed")
    subject = read_subject([full_study(folder / "study")])
    parts = sections.build(subject)
    for rows in (17, 52, 34, 45):
        table = frame({"step": number, "value": number} for number in range(rows))
        parts.append(sections.Section("more", table, f"{rows} rows"))
    wide = {"run": "Training, batch 16 a worker", "time_per_step": "0.2129 ± 0.0034 s"}
    wide |= {f"quantity_{number}": 22922.5 for number in range(12)}
    parts.append(sections.Section("wide", frame([wide] * 4), "Many columns"))
    full = {f"quantity_{number}": 10**9 for number in range(8)}
    unbroken = full | {"parameter": "bert.encoder.layer.0.attention.self.query.weight"}
    parts.append(sections.Section("unbroken", frame([unbroken] * 4), "Long words"))
    course = read_subject([course_study(folder / "course")])
    found = {"study": printed(subject, parts)}
    return found | {"course": printed(course, sections.build(course))}


PX_OF_MM = 96 / 25.4
PX_OF_PT = 96 / 72
RIGHT = (210 - 14) * PX_OF_MM  # of the text
on_both = pytest.mark.parametrize("study", ["study", "course"])


def is_cell(box) -> bool:
    return type(box).__name__ == "TableCellBox"  # its lines have its tag, too


def on(tags: tuple[str, ...], boxes: list) -> list:
    return [box for box in boxes if box.element_tag in tags]


@pytest.mark.slow
@pytest.mark.needs("Pango")
@on_both
def test_printed_report_has_full_pages_and_no_stray_rows(on_paper, study):
    pages = on_paper[study]
    split = {}  # rows of each table's body, by the page that they are on
    for boxes in pages:
        for body in on(("tbody",), boxes):
            rows = len(on(("tr",), list(body.descendants())))
            split.setdefault(body.element, []).append(rows)
    parted = [of_pages for of_pages in split.values() if len(of_pages) > 1]
    assert parted and min(map(min, parted)) >= 3, parted
    for boxes, following in pairwise(pages):
        shown = on(("h2", "h3", "p", "tr", "pre", SVG), boxes)
        assert shown[-1].element_tag not in ("h2", "h3")
        if not any(map(is_appendix, following)):  # which begins on a page of its own
            assert max(box.position_y + box.height for box in shown) > 0.45 * 297 * PX_OF_MM


@pytest.mark.slow
@pytest.mark.needs("Pango")
@on_both
def test_printed_cells_stay_inside_do_not_touch_and_can_be_read(on_paper, study):
    for boxes in on_paper[study]:
        for row in on(("tr",), boxes):
            assert len(list(filter(is_cell, row.descendants()))) <= page.MOST_PRINTED
        for box in filter(is_cell, boxes):
            texts = [one for one in box.descendants() if hasattr(one, "text")]
            ends = [one.position_x + one.width for one in texts]
            gap = box.position_x + box.border_width() - max(ends, default=0)
            assert gap > 3, "".join(one.text for one in texts)
            assert box.position_x + box.width <= RIGHT + 1
            assert all(one.style["font_size"] > 7.49 * PX_OF_PT for one in texts)


@pytest.mark.slow
@pytest.mark.needs("Pango")
@on_both
def test_printed_figures_can_be_read(on_paper, study):
    figures = [box for boxes in on_paper[study] for box in on((SVG,), boxes)]
    scales = [box.width / (drawing.WIDTH_IN * 96) for box in figures]
    assert len(scales) >= 6 and min(scales) * drawing.LEGEND_PT >= 7
    assert max(box.position_x + box.width for box in figures) <= RIGHT + 1


@pytest.mark.slow
@pytest.mark.needs("Pango")
def test_course_report_has_at_most_eight_pages_before_appendix(on_paper):
    pages = on_paper["course"]
    (at,) = [n for n, boxes in enumerate(pages) if any(map(is_appendix, boxes))]
    assert at <= 8


@pytest.mark.parametrize(
    ("columns", "rows", "figures", "in_appendix", "wanted"),
    [
        (5, 12, 1, False, "slim beside"), (6, 12, 1, False, "led beside"),
        (8, 12, 1, False, "led"), (9, 40, 1, True, "led"),
        (9, 12, 2, False, ""), (5, 12, 0, False, "half"), (6, 12, 0, False, ""),
    ],
)  # fmt: skip
def test_a_table_is_beside_its_figure_where_both_have_room(
    columns, rows, figures, in_appendix, wanted
):
    table = frame({f"c{number}": row for number in range(columns)} for row in range(rows))
    drawn = {str(number): "" for number in range(figures)}
    part = sections.Section("x", table, "X", figures=drawn, in_appendix=in_appendix)
    assert page.layout(part) == wanted


@pytest.mark.parametrize(("runs", "is_long"), [(12, False), (13, True)])
def test_long_table_moves_to_appendix_and_figure_stays(tmp_path, runs, is_long):
    many = (make_run(tmp_path / str(number), seed=number) for number in range(runs))
    subject = read_subject(list(many))
    (losses,) = (one for one in sections.build(subject) if one.name == "first_losses")
    assert losses.in_appendix == is_long and losses.figures
    text = page.html(subject, [losses])
    figure, link, table = map(text.find, ("<svg", "#first_losses-table", 'id="first_losses-table"'))
    assert (link < figure < text.find('id="appendix"') < table) if is_long else link == table == -1


def is_appendix(box) -> bool:
    element = box.element
    return element is not None and element.tag == "h2" and element.get("id") == "appendix"


def test_help_needs_neither_drawing_nor_tables_and_no_report_needs_torch():
    """What of ours a report may import, setup.cfg says to lint-imports."""
    code = "import sys, train.report.__main__; print({'scipy', 'pandas'} & {*sys.modules})\n"
    code += "from train.report.pages import page; print({'torch', 'matplotlib'} & {*sys.modules})"
    done = call(sys.executable, "-c", code, cwd=CHECKOUT)
    assert done.stdout.split() == ["set()"] * 2, done


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("logs/no-such-run", "logs/no-such-run is no folder"),
        ("--live logs/run", "--live was removed; use muster jobs list"),
    ],
)
def test_missing_folder_and_removed_flag_are_refused(argv, message):
    error = refused(command.main, *argv.split())
    assert error.startswith(f"error: {message}") and error.count("\n") == 1
