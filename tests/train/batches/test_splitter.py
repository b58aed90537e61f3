"""`--split auto` changes which rank computes which samples, and nothing else."""

import time

import pytest
import torch
from torch import nn

from configs.settings.train import TrainConfig
from tests.launch.submit import submit
from tests.train import workers
from tests.train.matrix_tasks import Mlp
from tests.train.on_ranks import trainer_of
from train.batches.plan import BatchPlan
from train.batches.splitter import Splitter
from train.sync.ranks import Ranks

EVEN = BatchPlan(400, 64, (1.0, 1.0), 1, 0)


@pytest.fixture
def better(monkeypatch):
    """Return a function from all ranks' seconds and samples to a plan; also lines and records."""
    lines = []
    records = []
    splitter = Splitter(Ranks(0, 2), lines.append, records.append)

    def call(plan, *rows):
        monkeypatch.setattr(Ranks, "device", torch.device("cpu"))
        monkeypatch.setattr(Ranks, "all_gather", lambda ranks, local: torch.tensor(rows))
        return splitter.rebalanced(plan, 8, 0.0, 0.0)

    return call, lines, records


def test_rank_of_half_the_speed_gets_half_the_samples(better):
    call, (*_,), records = better
    plan = call(EVEN, (1.0, 100.0), (2.0, 100.0))
    assert plan.weights[0] == pytest.approx(2 * plan.weights[1])
    assert records[0].parts == [43, 21] and records[0].step == 8
    assert records[0].predicted_gain == pytest.approx(32 * 0.02 / 0.43)


def test_split_that_gains_less_than_a_twentieth_is_not_taken(better):
    call, lines, _ = better
    assert call(EVEN, (1.0, 100.0), (1.08, 100.0)) is EVEN
    assert lines[0].endswith("speeds of the ranks: 1.00, 0.93; even parts are best")
    changed = call(EVEN, (1.0, 100.0), (1.5, 100.0))
    assert changed is not EVEN and "parts 38,26 are 1.23 times" in lines[1]
    assert call(changed, (1.0, 100.0), (1.45, 100.0)) is changed


def test_rank_without_samples_keeps_its_last_speed(better):
    call, lines, _ = better
    assert call(EVEN, (1.0, 100.0), (0.0, 0.0)) is EVEN and lines == []
    plan = call(EVEN, (1.0, 100.0), (3.0, 100.0))
    assert call(plan, (1.0, 100.0), (0.0, 0.0)) is plan


@pytest.mark.slow
def test_split_auto_has_the_losses_of_even_parts(tmp_path):
    flags = ["--task", "synthetic", "--nodes", "3", "--dropout", "0", "--logs-dir", str(tmp_path)]
    losses = {}
    for split in ("even", "auto"):
        code, out, err = submit(*flags, "--split", split, "--run-id", split, "--max-steps", "40")
        assert code == 0, err
        losses[split] = workers.losses(tmp_path / split)
    assert "split auto, step 8: relative speeds" in out
    plans = workers.records(tmp_path / "auto", 0, "split")
    assert [plan["step"] for plan in plans] == [8, 32] and sum(plans[0]["parts"]) == 64
    assert len(losses["auto"]) == 40
    assert losses["auto"] == pytest.approx(losses["even"], abs=1e-6)


class Slow(nn.Module):
    """Rank 1 takes 20 ms for each sample."""

    def __init__(self, rank):
        super().__init__()
        self.sample_s = 0.02 * rank

    def forward(self, points):
        time.sleep(self.sample_s * len(points))
        return points


class Layers(nn.Module):
    """Passes wait for all ranks in a BatchNorm, and with fsdp also where a layer is gathered."""

    def __init__(self, rank):
        super().__init__()
        widths = ((6, 12), (12, 12), (12, 12))
        self.layers = nn.ModuleList(
            nn.Sequential(Slow(rank), nn.Linear(*width)) for width in widths
        )
        self.end = nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 2))

    def forward(self, points):
        for layer in self.layers:
            points = layer(points)
        return self.end(points)


class Normalised(Mlp):
    def network(self):
        return Layers(torch.distributed.get_rank())


def weights(ranks):
    """Return each mode's weights; as a busy machine may slow the fast rank, try several times."""
    by_mode = {}
    for mode in ("ddp", "fsdp"):
        config = TrainConfig(sync=mode, split="auto", batch_size=6, max_steps=9, evaluate="never")
        for _ in range(8):
            trainer = trainer_of(config, ranks, Normalised(config))
            trainer.fit()
            by_mode[mode] = torch.tensor(trainer.plan.weights)
            if is_recognised(by_mode[mode]):  # they are the same on all ranks
                break
    return by_mode


def is_recognised(weights):
    fast, slow = weights
    return fast > 3 * slow


@pytest.mark.slow
def test_slow_rank_is_recognised_where_forward_passes_wait_for_it(tmp_path):
    for by_mode in workers.results_of(weights, 2, tmp_path):
        assert all(map(is_recognised, by_mode.values())), by_mode


@pytest.mark.slow
def test_resumed_split_auto_run_keeps_its_parts_and_its_bits(tmp_path):
    flags = ["--task", "synthetic", "--nodes", "2", "--logs-dir", str(tmp_path), "--split", "auto"]
    short = ["--epochs", "1", "--evaluate", "never", "--checkpoint-every", "12", "--resume", "auto"]
    code, out, err = submit(*flags, *short, "--run-id", "whole", "--keep-last", "9")
    assert code == 0 and "yet: starting from the beginning" in out, err
    (tmp_path / "cut" / "checkpoints").mkdir(parents=True)
    first = "checkpoints/step_00000012"
    (tmp_path / "whole" / first).rename(tmp_path / "cut" / first)
    again = [*short[:-1], str(tmp_path / "cut"), "--run-id", "again"]
    code, out, err = submit(*flags, *again)
    assert code == 0 and "split auto: " in out and "checkpoint's" in out, err
    losses = {}
    for run in ("whole", "again"):
        steps = workers.records(tmp_path / run, 0, "step")
        losses[run] = {record["step"]: record["loss"] for record in steps}
    assert losses["again"] == {step: loss for step, loss in losses["whole"].items() if step > 12}
