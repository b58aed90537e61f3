"""A task may bring its own optimizer and schedule; parameters that drift apart are equalized."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from tests.train.retained import run
from tests.train.workers import losses, records, results_of
from train.report.data import event_tables
from train.report.data.subject import read_subject
from train.tasks.synthetic import Synthetic

ROUNDING = 2.0**-6  # added to rank 1's first value in each step
CONFIG = TrainConfig(task="synthetic", sync="ddp", batch_size=256, max_steps=6, device="cpu",
                     dropout=0.0, evaluate="never")  # fmt: skip


class Drifting(torch.optim.SGD):
    def __init__(self, params, off):
        super().__init__(params, lr=0.01)
        self.off = off

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.param_groups[0]["params"][0].view(-1)[0] += self.off


class Own(Synthetic):
    off = 0.0

    def build_optimizer(self, model):
        return Drifting(model.parameters(), self.off)

    def schedule(self, steps):
        return lambda step: 0.5**step


def drifting(ranks, folder):
    """Train three times; in the last run, rank 1 rounds differently."""
    for name, off, every in (("plain", 0, 0), ("alike", 0, 2), ("drifts", ROUNDING, 2)):
        config = replace(CONFIG, equalize_every=every)
        task = Own(config)
        task.off = off * ranks.rank
        trainer, _ = run(config, Path(folder, name), task=task, ranks=ranks)
        params = torch.cat([one.detach().flatten() for one in trainer.model.parameters()])
        assert not every or (ranks.all_gather(params) == params).all()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drift")
    results_of(drifting, 2, folder, str(folder))
    return folder


def test_optimizer_and_schedule_of_a_task_are_used(runs):
    steps = records(runs / "plain", 0, "step")
    assert [row["lr"] for row in steps] == [0.01 * 0.5**number for number in range(6)]


def test_equalizing_equal_replicas_changes_no_loss(runs):
    assert losses(runs / "plain") == losses(runs / "alike")
    assert {row["drift"] for row in records(runs / "alike", 1, "drift")} == {0.0}
    assert not records(runs / "plain", 0, "drift")


def test_drift_is_measured_and_reported(runs):
    for rank in (0, 1):
        found = records(runs / "drifts", rank, "drift")
        assert [row["step"] for row in found] == [2, 4, 6]
        # each is the drift of two steps, apart from rounding of the parameters
        drifts = [row["drift"] for row in found]
        assert drifts == pytest.approx([2 * ROUNDING] * 3, rel=1e-5)
    (row,) = event_tables.drift(read_subject([runs / "drifts"])).to_dict("records")
    assert (row["measured"], row["last_drift"]) == (3, drifts[-1])


@pytest.mark.parametrize("mode", ["zero1", "fsdp", "local_sgd"])
def test_equalize_every_is_refused_without_replicas(mode):
    with pytest.raises(UsageError, match=f"--equalize-every .* --sync {mode}"):
        TrainConfig(sync=mode, equalize_every=5)
