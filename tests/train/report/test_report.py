import csv
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.commands import call
from tests.train.report import folders
from tests.train.report.folders import cell, make_run, make_study, step
from train.report.data.subject import read_subject
from train.report.data.tables import frame
from train.report.pages import drawing, page, sections

REPOSITORY = Path(__file__).resolve().parents[3]
SVG = "{http://www.w3.org/2000/svg}svg"
MODES = ("single", "gather_scatter", "all_reduce", "ddp", "accelerate")


def report(*argv: object) -> subprocess.CompletedProcess[str]:
    return call(sys.executable, "-m", "train.report", *argv, cwd=REPOSITORY)


def full_study(path: Path) -> Path:
    """All modes, each kind of record, a restart, and cells that failed or wait."""
    cells = [cell(sync, settings={"sync": sync}) for sync in MODES]
    cells += [cell("lost", state="failed", message="<script>alert(1)</script>", run_dir="")]
    cells += [cell("later", state="waiting", run_dir="")]
    make_study(path, cells)
    for sync in MODES:
        more = [folders.evaluation(n, accuracy=n / 30) for n in (10, 20)]
        more += [folders.traffic(0), folders.traffic(1), folders.collectives()]
        more += [folders.split(10, [40, 24], 1.2), folders.checkpoint(10, 0.002)]
        make_run(path / "runs" / sync, sync=sync, workers=1 if sync == "single" else 4, more=more)
    one = {"run": "ddp", "folders": ["ddp"], "mode": "ddp", "workers": 4}
    one |= {"predicted_s": 0.11, "measured_s": 0.1}
    prediction = {"seconds_per_iteration": [one]}
    (path / "prediction.json").write_text(json.dumps(prediction))
    return path


@pytest.mark.slow
def test_the_command_writes_all_forms_and_prints_the_tables(tmp_path):
    study = full_study(tmp_path / "study")
    done = report(study)
    assert done.returncode == 0, done.stderr
    assert "## Seconds per iteration" in done.stdout
    folder = study / "report"
    names = {file.name for file in (folder / "data").iterdir()}
    wanted = "losses seconds speedup traffic collectives balance checkpoints failures prediction"
    for name in wanted.split():
        assert {f"{name}.csv", f"{name}.json"} <= names
    with (folder / "data" / "seconds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["mean_s"]) for row in rows] == pytest.approx([0.1] * 5)
    assert (folder / "report.md").read_text() in done.stdout
    pdf = folder / "report.pdf"
    assert pdf.read_bytes().startswith(b"%PDF") if pdf.exists() else "install" in done.stderr


class Outside(HTMLParser):
    """Whatever a page would fetch or run."""

    found: list[str] = []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if tag == "script" or (name in ("src", "href") and not str(value).startswith("#")):
                self.found.append(f"{tag} {name}={value}")


def test_the_page_holds_all_that_it_shows_and_runs_nothing(tmp_path):
    subject = read_subject([full_study(tmp_path / "study")])
    parts = page.sections.build(subject)
    text = page.html(subject, parts)
    parser = Outside()
    parser.feed(text)
    assert parser.found == []
    assert "&lt;script&gt;alert(1)" in text
    assert sum(bool(part.figures) for part in parts) >= 6
    assert "currentColor" in text
    assert "currentColor" not in page.html(subject, parts, ink="#000000")


@pytest.mark.parametrize("kind", ["empty", "failed", "old", "unnumbered"])
def test_what_has_no_numbers_gives_a_report_that_says_so(tmp_path, kind):
    match kind:
        case "empty":
            path, message = make_study(tmp_path / "study", []), "study.json lists no cells"
        case "failed":
            path = make_run(tmp_path / "run", rows={}, end={"code": 1, "message": "no memory"})
            message = "no memory"
        case "old":
            rows = [{"step": n, "loss": 1.0} for n in range(1, 5)]
            path, message = make_run(tmp_path / "run", rows={0: rows, 1: rows}), "have no step_s"
        case _:
            path = make_run(tmp_path / "run", rows={0: [step(1, loss=float("nan"))]}, workers=1)
            message = "What was run"
    parts, _ = page.write(read_subject([path]), tmp_path / "report")
    assert message in (tmp_path / "report" / "report.md").read_text()
    assert message in (tmp_path / "report" / "index.html").read_text()
    assert not any(part.title == "Seconds per iteration" for part in parts)


def test_without_the_librarys_parts_all_but_the_pdf_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    _, problem = page.write(read_subject([make_run(tmp_path / "run")]), tmp_path / "report")
    assert "pip install weasyprint" in problem
    assert not (tmp_path / "report" / "report.pdf").exists()
    assert (tmp_path / "report" / "index.html").exists()


@pytest.mark.slow
def test_printed_tables_do_not_leave_a_row_or_two_behind_and_pages_are_full(tmp_path):
    weasyprint = pytest.importorskip("weasyprint", exc_type=OSError)
    subject = read_subject([full_study(tmp_path / "study")])
    parts = sections.build(subject)
    for rows in (17, 52, 34, 45):
        table = frame({"step": number, "value": number} for number in range(rows))
        parts.append(sections.Section("more", table, f"{rows} rows"))
    made = page.html(subject, parts, ink=drawing.PRINT_INK)
    pages = [
        list(one._page_box.descendants()) for one in weasyprint.HTML(string=made).render().pages
    ]
    split = {}  # rows of each table's body, by the page that they are on
    for boxes in pages:
        for body in (box for box in boxes if box.element_tag == "tbody"):
            rows = sum(box.element_tag == "tr" for box in body.descendants())
            split.setdefault(body.element, []).append(rows)
    assert any(len(of_pages) > 1 for of_pages in split.values())
    assert all(min(of_pages) >= 3 for of_pages in split.values() if len(of_pages) > 1), (
        split.values()
    )
    for boxes in pages[:-1]:
        shown = [box for box in boxes if box.element_tag in ("h2", "h3", "p", "tr", SVG)]
        assert shown[-1].element_tag not in ("h2", "h3")
        assert max(box.position_y + box.height for box in shown) > 0.5 * 1123  # pixels of A4


def test_the_report_needs_no_torch_and_help_needs_no_drawing():
    code = (
        "import importlib, pkgutil, sys, train.report as r\n"
        "importlib.import_module('train.report.__main__')\n"
        "light = {'matplotlib', 'weasyprint', 'scipy', 'pandas'} & set(sys.modules)\n"
        "for one in pkgutil.iter_modules(r.__path__):\n"
        "    importlib.import_module('train.report.' + one.name)\n"
        "known = ('train.report', 'train.records')\n"
        "others = {n for n in sys.modules if n.startswith('train.') and not n.startswith(known)}\n"
        "heavy = {'torch', 'launch'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(light | others | heavy)) or 0)\n"
    )
    done = call(sys.executable, "-c", code, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--live", "logs/run"], "error: --live is gone; use: muster jobs list"),
        (["logs/no-such-run"], "error: logs/no-such-run is no folder"),
    ],
)
def test_what_cannot_be_reported_is_refused_in_one_line(argv, message):
    done = report(*argv)
    assert done.returncode == 2
    assert done.stderr.startswith(message) and "Traceback" not in done.stderr
