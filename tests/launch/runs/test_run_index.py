"""Runs are found again, even after their disk was away; a user without a home has no index."""

import shutil
import sys

import pytest

from launch.runs import run_record
from tests.commands import call
from tests.launch.run_folders import remembered
from tests.required import AS_ANY_USER


@pytest.fixture(autouse=True)
def _index(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_a_run_whose_disk_was_away_is_found_again(tmp_path):
    here, away = remembered(tmp_path / "here" / "one"), remembered(tmp_path / "disk" / "two")
    assert sorted(run_record.run_folders()) == sorted([here, away])
    (tmp_path / "disk").rename(tmp_path / "away")
    assert run_record.run_folders() == [here]
    (tmp_path / "away").rename(tmp_path / "disk")
    assert sorted(run_record.run_folders()) == sorted([here, away])
    shutil.rmtree(here)
    assert run_record.run_folders() == [away]


def test_a_run_that_cannot_be_looked_at_hides_no_other(tmp_path):
    for number in range(3):
        remembered(tmp_path / f"disk{number}" / "run")
    index = tmp_path / "state" / "muster" / "runs"
    (index / "notes.txt").touch()  # the user's own file
    first, *others = [link.readlink() for link in index.iterdir() if link.is_symlink()]
    first.parent.chmod(0o000)
    look = "from launch.runs import run_record; print(*run_record.run_folders(), sep='\\n')"
    done = call(*AS_ANY_USER, sys.executable, "-c", look)
    first.parent.chmod(0o700)
    assert sorted(done.stdout.split()) == sorted(map(str, others)), done.stderr


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_has_no_index(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME")
    remembered(tmp_path / "run")
    assert run_record.run_folders() == []
