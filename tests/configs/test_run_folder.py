"""A run folder is named by time, and belongs to one run."""

import time

import pytest

from configs import run_folder
from configs.errors import UsageError
from configs.schema import TrainConfig


def test_names_sort_by_time_and_say_what_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form: "20260821-143000")
    config = TrainConfig(task="synthetic", sync="single", logs_dir=tmp_path / "new")
    names = [run_folder.claim_new(config, "1x1") for _ in range(3)]
    first = "20260821-143000-synthetic-single-1x1"
    assert names == [first, f"{first}-2", f"{first}-3"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == names


def test_of_two_runs_that_choose_the_same_name_one_chooses_again(tmp_path, monkeypatch):
    chosen = iter(["same", "same", "other"])
    monkeypatch.setattr(run_folder, "new_run_id", lambda config, size, what: next(chosen))
    config = TrainConfig(logs_dir=tmp_path)
    assert [run_folder.claim_new(config, "1x1") for _ in range(2)] == ["same", "other"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="choose another --logs-dir"):
        run_folder.claim_new(TrainConfig(logs_dir=tmp_path / "file"), "1x1")


def test_overwriting_clears_what_a_run_wrote_and_nothing_else(tmp_path):
    for name in ("metrics/rank_00003.jsonl", "exits/rank_00003.json", "thesis.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match="not empty; use --overwrite"):
        run_folder.claim(tmp_path, overwrite=False)
    run_folder.claim(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["thesis.txt"]
