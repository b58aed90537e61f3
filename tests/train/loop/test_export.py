"""A saved model can be loaded again, and scores the same as at the end of training."""

import json
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save, save_model

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from tests.train.retained import Uncommon
from tests.train.workers import finish, results_of, start
from train import score
from train.loop import build, export
from train.loop.run import SUMMED_UP
from train.records.sinks import Console, History
from train.records.summary import summarise
from train.sync.ranks import Ranks
from train.tasks import synthetic


def run(module: str, *words: str) -> None:
    ((code, _, err),) = finish([start(["-m", module, *words], {"OMP_NUM_THREADS": "1"})])
    assert code == 0, err


@pytest.mark.parametrize("task", ["synthetic", "quickstart"])
def test_exported_model_scores_the_same(tmp_path, task):
    flags = ["--task", task, "--logs-dir", str(tmp_path)]
    short = ["--max-steps", "3", "--evaluate", "end", "--run-id", "run"]
    run("train.worker", *flags, *short, "--eval-samples", "50")
    model = tmp_path / "run" / "model"
    run("train.score", str(model), *flags, "--run-id", "score", "--eval-samples", "50")
    was = json.loads((tmp_path / "run" / "summary.json").read_text())
    now = json.loads((tmp_path / "score" / "scores.json").read_text())
    assert now["samples"] == 50
    for name in ("accuracy", "eval_loss"):
        assert now[name] == pytest.approx(was[name], abs=1e-7)
    card = (model / "README.md").read_text()
    assert f"Trained on `{task}` for 3 steps" in card and f"task: {task}" in card
    assert f"| accuracy | {was['accuracy']:.4f} |" in card
    if task == "quickstart":
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        again = AutoModelForSequenceClassification.from_pretrained(model)
        assert again.config.id2label == {0: "entailment", 1: "not_entailment"}
        assert len(AutoTokenizer.from_pretrained(model)) <= again.config.vocab_size


def test_resumed_run_and_its_model_count_all_steps(tmp_path):
    flags = ["--task", "synthetic", "--logs-dir", str(tmp_path), "--evaluate", "never"]
    run("train.worker", *flags, "--run-id", "cut", "--max-steps", "3", "--checkpoint-every", "3")
    resumed = ["--run-id", "whole", "--max-steps", "6", "--resume", str(tmp_path / "cut")]
    run("train.worker", *flags, *resumed)
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert (summary["steps"], summary["timed_steps"]) == (6, 2)
    card = (tmp_path / "whole" / "model" / "README.md").read_text()
    assert "# synthetic, 6 steps" in card and "for 6 steps of" in card


@pytest.mark.parametrize("kind", ["tied", "frozen", "adapted"])
def test_tied_frozen_and_adapted_weights_are_saved_exactly(tmp_path, kind):
    config = TrainConfig(task="synthetic")
    task = Uncommon(config, kind)
    model, other = task.build_model(), task.build_model()
    settings = {name: getattr(config, name) for name in SUMMED_UP}
    totals = summarise({**settings, "world_size": 1}, History(), 3)
    export.save(task, model, tmp_path / "model", config, totals)
    export.load_weights(other, tmp_path / "model")
    was, now = model.state_dict(), other.state_dict()
    assert was.keys() == now.keys() and all(torch.equal(was[name], now[name]) for name in was)
    if kind == "tied":
        assert other[3].weight is other[1].weight
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"library_name: {'peft' if kind == 'adapted' else 'muster'}" in card
    if kind == "adapted":
        from peft import PeftModel

        plain = synthetic.build(config).build_model()
        loaded = PeftModel.from_pretrained(plain, tmp_path / "model").state_dict()
        adapters = [name for name in was if "lora" in name]
        assert adapters and all(torch.equal(was[name], loaded[name]) for name in adapters)


def scores_of(ranks: Ranks, mode: str, folder: str) -> dict[str, float]:
    """Return the scores of the weights in `folder`."""
    config = TrainConfig(task="synthetic", sync=mode, epochs=0, seed=1, device="cpu")
    task, console, cpu = synthetic.build(config), Console(speaks=False), torch.device("cpu")
    trainer = build.trainer(config, ranks, cpu, task, console, Mock(), weights=Path(folder))
    return trainer.fit().evaluations[0].metrics


@pytest.mark.parametrize("mode", ["fsdp", "zero1"])
def test_model_split_by_sync_mode_scores_like_whole_one(tmp_path, mode):
    saved = synthetic.build(TrainConfig(task="synthetic")).build_model()
    save_model(saved, str(tmp_path / export.WEIGHTS))
    whole = scores_of(Ranks(), "single", str(tmp_path))
    for split in results_of(scores_of, 2, tmp_path, mode, str(tmp_path)):
        assert split == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--task", "synthetic"], "MODEL"),
        (
            ["bert-base-cased", "--task", "rte", "--new-head"],
            "--new-head ",
        ),
    ],
)
def test_score_of_no_trained_model_is_refused(argv, message):
    with pytest.raises(UsageError, match=message):
        score.main(argv)


def test_score_keeps_the_folder_of_its_model(tmp_path):
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    (model / "model.safetensors").touch()
    flags = ["--task", "synthetic", "--logs-dir", str(tmp_path), "--run-id", "run", "--overwrite"]
    with pytest.raises(UsageError, match=rf"--overwrite .* {re.escape(str(model.parent))}"):
        score.main([str(model), *flags])
    assert (model / "model.safetensors").exists()


OTHER = save({"other": torch.ones(2)})
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"has no model\.safetensors"),
        (OTHER, r"model\.safetensors: Error"),
        (OTHER[:-1], r"model\.safetensors is damaged"),
        (POINTER, r"model\.safetensors is a .*lfs pull"),
    ],
    ids=["none", "another", "cut off", "pointer"],
)
def test_weights_of_another_model_are_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        export.load_weights(torch.nn.Linear(2, 2), tmp_path)


def test_score_accepts_a_run_folder(tmp_path):
    run, model = tmp_path / "run", tmp_path / "run" / "model"
    model.mkdir(parents=True)
    assert score._folder_of(run) == model
    (model / "model.safetensors").touch()
    assert score._folder_of(model) == model
    shutil.rmtree(model)
    with pytest.raises(UsageError, match=r"config.json nor model.safetensors"):
        score.main([str(run), "--task", "rte"])
    (run / "config.yaml").touch()
    with pytest.raises(UsageError, match="run is a run "):
        score.main([str(run), "--task", "rte"])
