"""The pictures of README: what a terminal shows becomes one file that loads nothing."""

import sys
from xml.etree import ElementTree

import pyte
import pytest

from tests.figures import architecture, recording, results, terminal_svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def recorded():
    """A program that colours a word, overwrites a line, and waits in between."""
    program = (
        "import time; print('\\x1b[32mgreen\\x1b[0m plain', flush=True); time.sleep(3);"
        "print('half', end='\\r', flush=True); time.sleep(3); print('whole')"
    )
    return recording.record([sys.executable, "-c", program], pyte.Screen(60, 5))


def rows(frame):
    return ["".join(text for _, text in row) for row in frame.rows]


def test_each_screen_that_lasts_is_a_frame(recorded):
    frames, status = recorded
    assert status == 0
    assert any("half" in rows(one) for one in frames)
    assert "whole" in rows(frames[-1]) and "half" not in rows(frames[-1])
    assert all(one.seconds <= recording.LONGEST_S for one in frames[:-1])


def test_a_failure_is_no_recording(tmp_path, capsys):
    path = tmp_path / "run.svg"
    words = ["--output", str(path), "--", sys.executable, "-c", "raise SystemExit('no')"]
    assert recording.main(words) == 1
    assert not path.exists() and "no" in capsys.readouterr().err


def test_the_file_is_whole_and_loads_nothing(recorded):
    text = terminal_svg.draw(recorded[0], 60, 5)
    root = ElementTree.fromstring(text)
    ids = {one.get("id") for one in root.iter(f"{SVG}text")}
    assert {one.get("href").removeprefix("#") for one in root.iter(f"{SVG}use")} <= ids
    assert text.count("http") == 1  # the name of SVG itself
    assert 'url("data:font/woff;base64,' in text
    assert f'fill="{terminal_svg.COLOURS["green"]}">green</tspan>' in text


def test_the_architecture_is_drawn_on_white(tmp_path):
    path = tmp_path / "architecture.svg"
    architecture.draw(path)
    drawn = path.read_text()
    assert all(f"<!-- {box.title} -->" in drawn for box in architecture.COMMANDS)
    assert "fill: #ffffff" in drawn


def test_a_page_of_results_has_the_report_and_the_figures_of_its_study(tmp_path):
    (tmp_path / "report" / "figures").mkdir(parents=True)
    for name in ("report.pdf", "figures/seconds.svg", "figures/speedup.svg"):
        (tmp_path / "report" / name).write_text(name)
    results.copy("cs744", tmp_path / "report", tmp_path)
    for name, kept in (
        ("report.pdf", "reports/cs744.pdf"), ("figures/seconds.svg", "figures/cs744-seconds.svg")
    ):  # fmt: skip
        assert (tmp_path / kept).read_text() == name


def test_each_page_of_results_shows_what_its_study_is_said_to_give():
    pages = {one.stem: one.read_text() for one in results.RESULTS.glob("*.md")}
    text = "".join(pages.values())
    kept = {one.name for one in (results.RESULTS / "figures").iterdir()}
    named = {f"{name}-{one}.svg" for name, figures in results.SHOWN.items() for one in figures}
    assert kept == named
    assert all(f"(figures/{name})" in text for name in named)
    assert all(f"(reports/{name}.pdf)" in text for name in results.SHOWN)
    for name in results.SHOWN:
        assert (results.REPOSITORY / f"configs/studies/{name}.yaml").is_file()
