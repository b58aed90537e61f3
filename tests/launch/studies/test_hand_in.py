"""An archive for a course says which files are Muster's, and how to repeat its runs."""

import argparse
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from launch.studies import cell_runs, hand_in, study_file
from launch.studies.cells import Sweep
from muster.checkout import CHECKOUT
from tests.written import write

GRID = """
discussion: It scales.
base: {task: synthetic, max_steps: 3}
grid:
  - {name: "Task 2a: gather and scatter", sync: gather_scatter, nodes: [2, 3]}
  - {sync: ddp, nodes: 2}
"""
NO_SYNC = "base: {task: synthetic}\ngrid:\n  - {seed: [1, 2]}\n"


@pytest.fixture
def done(tmp_path, monkeypatch):
    """A function that reads a study and marks each of its runs as done."""
    (tmp_path / "a b").mkdir()
    monkeypatch.chdir(tmp_path)

    def done(path: Path) -> Sweep:
        study = study_file.read(path, ["--data-dir", "a b"])
        study.folder = tmp_path / "out"
        for cell in study.cells:
            cell.state = "done"
            files = {"config.yaml": "", "launch.json": json.dumps({"command": "as it was"})}
            write(study.run_dir(cell), files)
        return study

    return done


@pytest.fixture
def finished_study(tmp_path, done):
    return done(write(tmp_path, {"mine.yaml": GRID}) / "mine.yaml")


def test_each_part_has_the_commands_that_repeat_it(finished_study):
    hand_in.pack(finished_study, Path("zip"))
    home = finished_study.folder / "hand_in"
    assert {path.name for path in home.iterdir()} == {
        "README.md",
        "code",
        "task2a",
        "sync-ddp_nodes-2",
    }
    first, second = (home / "task2a" / "commands.txt").read_text().splitlines()
    flags = "--task=synthetic --max-steps=3 --sync=gather_scatter --nodes=2 --data-dir 'a b'"
    assert first == f"muster run {flags}  # sync-gather_scatter_nodes-2_0"
    assert "--nodes=3" in second
    assert (home / "task2a" / "sync-gather_scatter_nodes-2_0" / "command.txt").is_file()
    assert (home / "sync-ddp_nodes-2" / "ddp.py").is_file()


def test_study_without_sync_mode_is_packed_with_default_mode(tmp_path, done):
    study = done(write(tmp_path, {"plain.yaml": NO_SYNC}) / "plain.yaml")
    hand_in.pack(study, Path("zip"))
    assert (study.folder / "hand_in" / "seed-1" / "ddp.py").is_file()


def test_the_archive_says_first_what_is_not_the_student_s(finished_study, done):
    hand_in.pack(finished_study, Path("zip"))
    about = finished_study.folder / "hand_in" / "README.md"
    first, measured = about.read_text().split("\n\n")
    assert first.startswith("**The code in `code/` and next to the records is Muster's")
    assert "`task2a/`, `sync-ddp_nodes-2/`" in measured
    about.write_text("mine")
    hand_in.pack(finished_study, Path("zip"))
    assert about.read_text() == "mine"
    about.unlink()
    hand_in.pack(done(CHECKOUT / "configs" / "studies" / "cos598d.yaml"), Path("zip"))
    assert "so are the report's texts of `configs/studies/cos598d.yaml`" in about.read_text()


def test_an_archive_has_the_form_of_its_ending(finished_study, tmp_path):
    for asked in ("tar.gz", str(tmp_path / "new" / "group7.tar.gz")):
        path = hand_in.pack(finished_study, hand_in.archive(asked))
        with tarfile.open(path) as archive:
            assert "./task2a/commands.txt" in archive.getnames()
    assert path == tmp_path / "new" / "group7.tar.gz"
    path = hand_in.pack(finished_study, hand_in.archive(str(tmp_path / "me.zip")))
    assert path == tmp_path / "me.zip" and zipfile.is_zipfile(path)
    with pytest.raises(argparse.ArgumentTypeError, match=r"group7\.rar'?: .*zip, tar\.gz"):
        hand_in.archive("group7.rar")


def test_texts_from_before_the_runs_stay_on_record(finished_study):
    def recorded() -> dict:
        return json.loads((finished_study.folder / "study.json").read_text())

    finished_study.folder.joinpath("study.json").unlink(missing_ok=True)
    cell_runs.begin(finished_study)
    assert recorded()["source"] == "mine.yaml"
    assert recorded()["texts_before"] == recorded()["texts"] == {"discussion": "It scales."}
    finished_study.texts = {"discussion": "Mine, of what was measured."}
    cell_runs.begin(finished_study)
    assert recorded()["texts_before"] == {"discussion": "It scales."}
    assert recorded()["texts"] == finished_study.texts
    record = {name: value for name, value in recorded().items() if name != "texts_before"}
    finished_study.folder.joinpath("study.json").write_text(json.dumps(record))
    cell_runs.begin(finished_study)  # as an earlier version wrote it
    assert recorded()["texts_before"] == finished_study.texts
