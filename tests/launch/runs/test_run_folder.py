"""A run folder is named by time, and belongs to one run."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from configs.settings.launch import RunConfig
from configs.settings.train import TrainConfig
from launch.runs.run_record import with_folder
from muster import run_files
from muster.errors import UsageError


def test_names_sort_by_time_and_say_what_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form: "20260821-143000")
    config = TrainConfig(task="synthetic", sync="single", logs_dir=tmp_path / "new")
    names = [with_folder(config, config.name, "1x1", make=True).run_id for _ in range(3)]
    first = "20260821-143000-synthetic-single-1x1"
    assert names == [first, f"{first}-2", f"{first}-3"]
    shown = with_folder(config, config.name, "1x1", make=False)  # which makes nothing
    assert shown.run_id == f"{first}-4"
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == names


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="choose another --logs-dir"):
        run_files.new_run_id(tmp_path / "file", "x", "1x1", make=True)


TAKEN = ".taken"


def test_one_of_many_that_start_at_once_gets_the_folder(tmp_path):
    """All of them have seen an empty folder before the first takes it."""
    count = 8
    seen = threading.Barrier(count)

    class Run(RunConfig):
        def inputs(self):
            seen.wait()
            return {}

    def claims(index):
        try:
            with_folder(Run(logs_dir=tmp_path, run_id="run"), "", "", make=True)
        except UsageError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(count) as pool:
        results = sorted(pool.map(claims, range(count)))
    assert results[0] == "" and all("not empty; use --overwrite" in one for one in results[1:])


def fill(run_dir, names):
    for name in names:
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).touch()


def claim(run_dir, config):
    run = replace(config, logs_dir=run_dir.parent, run_id=run_dir.name)
    assert with_folder(run, "", "", make=True) == run


def left(run_dir):
    return sorted(str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file())


def test_overwriting_clears_what_a_run_wrote_and_nothing_else(tmp_path):
    """Files of every kind, also those of attempts, and those whose writing was interrupted."""
    words = {"rank": 3, "node": 1, "attempt": 0, "host": "node1", "name": "x"}
    for file in run_files.FILES:
        fields = {name: word for name, word in words.items() if f"{{{name}}}" in file.pattern}
        path = file.path(tmp_path, **fields)
        path = path / "deep" / "x" if file.pattern.endswith(run_files.BELOW) else path
        name = str(path.relative_to(tmp_path))
        fill(tmp_path, [name, f"{name}.4711.partial"])
    fill(tmp_path, ["model.partial/model.safetensors", "attempts/0/metrics/rank_00000.jsonl"])
    fill(tmp_path, ["thesis.txt", "metrics/mine.txt", "plots/metrics/rank_00000.jsonl"])
    with pytest.raises(UsageError, match="not empty; use --overwrite"):
        claim(tmp_path, RunConfig())
    claim(tmp_path, RunConfig(overwrite=True))
    (tmp_path / TAKEN).unlink()
    assert left(tmp_path) == ["metrics/mine.txt", "plots/metrics/rank_00000.jsonl", "thesis.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics", "plots", "thesis.txt"]


def test_overwrite_with_resume_leaves_checkpoints_in_run_folder(tmp_path):
    fill(tmp_path, ["checkpoints/step_00000050/manifest.json", "summary.json"])
    claim(tmp_path, TrainConfig(overwrite=True, resume="auto"))
    assert left(tmp_path) == [TAKEN, "checkpoints/step_00000050/manifest.json"]


def test_a_run_does_not_clear_what_it_is_to_read(tmp_path):
    fill(tmp_path, ["model/config.json"])
    config = TrainConfig(overwrite=True, model=str(tmp_path / "model"))
    with pytest.raises(UsageError, match=r"would delete .*/model, which --model needs; use ano"):
        claim(tmp_path, config)
    assert left(tmp_path) == ["model/config.json"]


def test_nodes_that_share_a_disk_of_their_own_claim_it_once(tmp_path):
    """The second node comes after the first has begun to write; the next claim is another run's."""
    run_files.claim_on_node(tmp_path / "run", "a1", overwrite=False, resumed=False)
    fill(tmp_path / "run", ["metrics/rank_00000.jsonl", "checkpoints/step_00000001/state.json"])
    run_files.claim_on_node(tmp_path / "run", "a1", overwrite=False, resumed=False)
    with pytest.raises(UsageError, match="not empty; use --overwrite"):
        run_files.claim_on_node(tmp_path / "run", "b2", overwrite=False, resumed=False)
    assert "metrics/rank_00000.jsonl" in left(tmp_path / "run")
    run_files.claim_on_node(tmp_path / "run", "c3", overwrite=True, resumed=True)
    assert left(tmp_path / "run") == [".claimed-c3", "checkpoints/step_00000001/state.json"]
    run_files.claim_on_node(tmp_path / "run", "d4", overwrite=True, resumed=False)
    assert left(tmp_path / "run") == [".claimed-d4"]
