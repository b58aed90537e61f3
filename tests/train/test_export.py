"""What a run saves loads back, and scores as it did when training ended."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from configs.errors import UsageError
from tests.preload import interpreter
from train import export, score

REPOSITORY = Path(__file__).parents[2]


def run(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [interpreter(), "-m", module, *words],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("task", "files"),
    [
        ("synthetic", ["README.md", "model.safetensors"]),
        (
            "quickstart",
            ["README.md", "config.json", "model.safetensors", "tokenizer.json",
             "tokenizer_config.json"],
        ),
    ],
)  # fmt: skip
def test_a_saved_model_scores_as_it_did(tmp_path, task, files):
    flags = ["--task", task, "--logs-dir", str(tmp_path)]
    short = ["--max-steps", "3", "--evaluate", "end", "--run-id", "run"]
    run("train.worker", *flags, *short, "--eval-samples", "50")
    model = tmp_path / "run" / "model"
    assert sorted(path.name for path in model.iterdir()) == files
    run("train.score", str(model), *flags, "--run-id", "score", "--eval-samples", "50")
    was = json.loads((tmp_path / "run" / "summary.json").read_text())
    now = json.loads((tmp_path / "score" / "scores.json").read_text())
    assert now["samples"] == 50
    assert {key: now[key] for key in ("accuracy", "eval_loss")} == {
        key: pytest.approx(was[key], abs=1e-7) for key in ("accuracy", "eval_loss")
    }
    card = (model / "README.md").read_text()
    assert f"Trained on `{task}` for 3 steps" in card and f"task: {task}" in card
    assert f"| accuracy | {was['accuracy']:.4f} |" in card
    if task == "quickstart":
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        again = AutoModelForSequenceClassification.from_pretrained(model)
        assert again.config.id2label == {0: "entailment", 1: "not_entailment"}
        assert len(AutoTokenizer.from_pretrained(model)) <= again.config.vocab_size


def test_no_model_is_saved_where_none_is_wanted(tmp_path):
    flags = ["--task", "synthetic", "--logs-dir", str(tmp_path), "--run-id", "run"]
    run("train.worker", *flags, "--max-steps", "1", "--no-save-model")
    assert not (tmp_path / "run" / "model").exists()


def test_a_model_must_be_named():
    with pytest.raises(UsageError, match="which model"):
        score.main(["--task", "synthetic"])


def test_weights_of_another_model_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"model\.safetensors: "):
        export.load_weights(torch.nn.Linear(2, 2), tmp_path)
