"""`muster.record` writes what reports read."""

import json
import math
import re
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import muster
from tests.train.workers import records, run_program
from train.program.recorder import Recorder
from train.sync.ranks import Ranks


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_RUN_DIR", str(tmp_path))
    return tmp_path


def test_steps_and_evaluations_are_counted_and_timed(run_dir):
    model = muster.sync(nn.Linear(3, 1), "single")
    for step in muster.steps(8, batch_size=4, epochs=2):
        loss = model(torch.ones(len(step.micro_batches[0].indices), 3)).sum()
        loss.backward()
        assert muster.record(step, loss=loss, model=model, lr=0.5) == loss.item()
    muster.record(metrics={"accuracy": torch.tensor(0.25)})
    *steps, end = records(run_dir, 0)
    assert [(record["step"], record["epoch"], record["samples"]) for record in steps] == [
        (1, 1, 4), (2, 1, 4), (3, 2, 4), (4, 2, 4),
    ]  # fmt: skip
    for record in steps[1:]:  # timed from the moment when the first was recorded
        parts = [
            record[f"{part}_s"] for part in ("forward", "backward", "data", "sync", "optimizer")
        ]
        assert min(parts[:2]) > 0 and sum(parts) <= record["step_s"] * 1.01
    assert (end["kind"], end["step"], end["metrics"]) == ("eval", 4, {"accuracy": 0.25})


def test_nan_and_infinity_are_recorded_as_null(run_dir):
    muster.record(loss=math.nan, lr=math.inf)
    muster.record(metrics={"f1": math.nan})
    lines = (run_dir / "metrics" / "rank_00000.jsonl").read_text().splitlines()
    step, end = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert (step["loss"], step["lr"], end["metrics"]) == (None, None, {"f1": None})


def test_step_without_a_number_follows_the_last(run_dir):
    muster.record(loss=1.5, samples=64)
    muster.record(7, loss=1.25)
    muster.record(loss=1.0)
    steps = [(record["step"], record["loss"]) for record in records(run_dir, 0)]
    assert steps == [(1, 1.5), (7, 1.25), (8, 1.0)]


def test_loss_with_a_graph_is_recorded(run_dir, recwarn):
    muster.record(loss=nn.Linear(1, 1)(torch.ones(1, 1)).sum(), lr=torch.tensor(0.5))
    assert records(run_dir, 0)[0]["lr"] == 0.5
    assert not [warning for warning in recwarn if "requires_grad" in str(warning.message)]


@pytest.mark.parametrize(
    ("loss", "is_named"), [("1 / step", True), ("1 / step + max(0, rank * (step - 2))", False)]
)
def test_equal_losses_on_all_ranks_are_named_once(tmp_path, loss, is_named):
    """Such losses come from ranks that each train alone on the same samples."""
    text = (
        "import muster\n"
        "with muster.init(device='cpu') as run:\n"
        "    rank = run.rank\n"
        "    for step in range(1, 9):\n"
        f"        muster.record(step, loss={loss})\n"
    )
    ended = run_program(tmp_path, text, 2, MUSTER_RUN_DIR=str(tmp_path / "run"))
    assert [code for code, *_ in ended] == [0, 0], ended
    warning = r"program.py:5: UserWarning: muster.record: .* 3 steps all (2) ranks .* (0.33\d+):"
    found = [re.findall(warning, line) for *_, line in ended]
    assert found == [[("2", "0.3333333333333333")] if is_named else [], []]


def test_seconds_of_an_evaluation_end_when_the_device_has_its_metrics(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    class OnDevice:
        """A metric that a GPU is still computing; reading it waits for the GPU."""

        def __float__(self):
            clock[0] += 5
            return 0.5

    written = []
    Recorder(SimpleNamespace(write=written.append), Ranks()).evaluated(1, {"accuracy": OnDevice()})
    assert [record.eval_s for record in written] == [5]
