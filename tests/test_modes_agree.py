"""The main job, as a user starts it: every sync mode prints and saves the same as `single`."""

import json
import re

import pytest
from safetensors.torch import load_file

from configs import plugins
from muster.checkout import CHECKOUT
from tests.launch.submit import submit
from tests.train.workers import records

NAMES = plugins.names("train.sync.modes")
MODES = [mode for mode in NAMES if plugins.load("train.sync.modes", mode).is_exact]
FLAGS = ["--dropout", "0", "--max-steps", "5", "--evaluate", "end", "--threads", "1"]
FLAGS += ["--eval-samples", "96"]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


def outcome(mode, nodes, logs):
    """Run a mode on this many nodes; return the run's summary and the saved weights."""
    run = ["--nodes", str(nodes), "--sync", mode, "--run-id", mode, "--logs-dir", str(logs)]
    run += ["--workers", "torchrun" if mode == "ddp" else "manual"]  # the latter starts faster
    code, out, err = submit(*run, *FLAGS, timeout_s=300)
    assert code == 0, err
    summary = json.loads((logs / mode / "summary.json").read_text())
    summary["grad_norms"] = [one["grad_norm"] for one in records(logs / mode, 0, "step")]
    assert summary["world_size"] == nodes
    shown = [line.split()[-1] for line in out.splitlines() if line.startswith("step ")]
    assert [f"{loss:.6f}" for loss in summary["first_losses"]] == shown
    return summary, load_file(logs / mode / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def single(logs):
    return outcome("single", 1, logs)


@pytest.mark.slow
def test_the_main_job_learns_what_a_bag_of_words_cannot(tmp_path):
    """Start it as `make run` does; the generator's test checks that a bag of words scores low."""
    run = ["--nodes", "4", "--sync", "ddp", "--run-id", "main", "--logs-dir", str(tmp_path)]
    code, out, err = submit(*run, timeout_s=840)
    assert code == 0, err
    summary = json.loads((tmp_path / "main" / "summary.json").read_text())
    assert summary["accuracy"] > 0.9 and summary["batch_size"] == 64
    assert [one["epoch"] for one in summary["evaluations"]] == [1, 2, 3]
    assert "epoch 3" in out and "run folder" in out
    page = (CHECKOUT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    found, shown = (re.findall(r"^step \d  loss (\S+)$", text, re.M) for text in (out, page))
    # other processors round differently
    assert [*map(float, found)] == pytest.approx([*map(float, shown)], abs=1e-4)


def test_readme_shows_the_losses_that_one_process_has(single):
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|`.*?((?:\|0\.\d{6}){5})\|$", readme, re.M)
    assert len(rows) == 2
    losses = single[0]["first_losses"]
    for row in rows:
        assert [float(one) for one in row.split("|")[1:]] == pytest.approx(losses, abs=1e-4)


@pytest.mark.quick
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "single"])
def test_losses_scores_and_the_model_of_the_quickstart_agree(mode, single, logs):
    """Even if a mode gives each rank only a part, the whole is evaluated and saved."""
    (want, weights), (found, saved) = single, outcome(mode, 4, logs)
    assert len(found["first_losses"]) == 5
    assert found["first_losses"] == pytest.approx(want["first_losses"], abs=5e-6)  # five decimals
    assert found["grad_norms"] == pytest.approx(want["grad_norms"], rel=1e-4)
    (scores,), (wanted,) = found["evaluations"], want["evaluations"]
    assert scores == pytest.approx(wanted, rel=1e-4)
    assert saved.keys() == weights.keys()
    for name, tensor in weights.items():
        assert (saved[name] - tensor).abs().max() < 1e-5, name
    config = json.loads((logs / mode / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
