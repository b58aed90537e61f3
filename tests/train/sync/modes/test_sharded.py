"""zero1 and fsdp as a user runs them: metrics, model and records are a single process's."""

import json

import pytest
from safetensors.torch import load_file

from tests.launch.submit import submit
from tests.train.workers import records
from train.sync import base
from train.sync.ranks import Ranks

FLAGS = ["--dropout", "0", "--max-steps", "6", "--evaluate", "end", "--threads", "1", "--quiet"]
FLAGS += ["--train-samples", "256", "--eval-samples", "96", "--optimizer", "sgd", "--lr", "0.05"]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


def outcome(mode, nodes, logs, *more):
    run = ["--nodes", str(nodes), "--sync", mode, "--run-id", mode, "--logs-dir", str(logs)]
    code, _, err = submit(*run, *FLAGS, *more, timeout_s=300)
    assert code == 0, err
    summary = json.loads((logs / mode / "summary.json").read_text())
    steps = [one for one in records(logs / mode, 0) if one["kind"] == "step"]
    return summary, load_file(logs / mode / "model" / "model.safetensors"), steps


@pytest.fixture(scope="module")
def single(logs):
    return outcome("single", 1, logs)


@pytest.mark.parametrize("mode", ["zero1", "fsdp"])
def test_what_was_trained_is_evaluated_and_saved_whole(mode, single, logs):
    want, weights, steps = single
    found, saved, own = outcome(mode, 3, logs, "--split", "5,0,2", "--accumulation", "2")
    for name in ("loss", "grad_norm"):
        assert [one[name] for one in own] == pytest.approx([one[name] for one in steps], rel=2e-5)
    (metrics,), (wanted,) = found["evaluations"], want["evaluations"]
    assert metrics == pytest.approx(wanted, rel=1e-4)
    assert saved.keys() == weights.keys()
    for name, tensor in weights.items():
        assert (saved[name] - tensor).abs().max() < 1e-5, name
    config = json.loads((logs / mode / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]


@pytest.mark.parametrize("mode", ["zero1", "fsdp"])
def test_a_process_alone_keeps_all_of_it(mode):
    assert type(base.build(mode, Ranks(), base.SyncOptions())) is base.GradSync
