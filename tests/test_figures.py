"""The pictures of README: what a terminal shows becomes one file that loads nothing."""

import sys
from xml.etree import ElementTree

from tests.figures import recording, results

SVG = "{http://www.w3.org/2000/svg}"


def test_a_failure_is_no_recording(tmp_path, capsys):
    path = tmp_path / "run.svg"
    words = ["--output", str(path), "--", sys.executable, "-c", "raise SystemExit('no')"]
    assert recording.main(words) == 1
    assert not path.exists() and "no" in capsys.readouterr().err


def test_a_picture_has_the_last_screen_in_its_colours_and_loads_nothing(tmp_path):
    path, program = tmp_path / "run.svg", tmp_path / "program.py"
    program.write_text("print('\\x1b[32mgreen\\x1b[0m'); print('half', end='\\r'); print('whole')")
    assert recording.main(["--output", str(path), "--", sys.executable, str(program)]) == 0
    text = path.read_text()
    shown = [one.text for one in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert "green" in shown and "whole" in shown and "half" not in shown
    assert "@font-face" not in text and "cdnjs" not in text
    assert "#98a84b" in text  # rich's green


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
    every = results.SHOWN
    named = {f"{name}-{one}.svg" for name, figures in every.items() for one in figures}
    assert kept == named
    assert all(f"(figures/{name})" in text for name in named)
    assert all(f"(reports/{name}.pdf)" in text for name in every)
    for name in results.SHOWN:
        assert (results.REPOSITORY / f"configs/studies/{name}.yaml").is_file()
