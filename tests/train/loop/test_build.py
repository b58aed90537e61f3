"""When sample lengths are used, and that they change only how the work is divided."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import Subset

from configs.settings.train import TrainConfig
from tests.train.matrix_tasks import SmallBert, Tokens
from tests.train.on_ranks import trainer_of
from train.loop import build
from train.loop.evaluation import lengths_of
from train.sync.ranks import Ranks
from train.tasks import synthetic

CONFIG = TrainConfig(
    task="synthetic", sync="single", dropout=0.0, batch_size=16, epochs=6, max_steps=20, lr=1e-3
)


def plan_of(config=CONFIG, task=SmallBert, model=None, world_size=2):
    made, model = task(config), model or nn.Linear(1, 1)
    return build.plan(config, made, made.build_datasets().train, model, world_size)


def test_plan_uses_known_lengths():
    assert plan_of().by_length
    plan = plan_of(task=synthetic.build)
    assert not plan.by_length and plan.lengths == []


def test_plan_without_balance_counts_tokens():
    plan = plan_of(replace(CONFIG, length_balance=False))
    assert not plan.by_length
    step = next(plan.epoch(0, 0))
    assert step.local_tokens == step.local_samples * 8  # the longest of eight


@pytest.mark.parametrize("batchnorm", ["synced", "local"])
def test_batchnorm_sees_the_same_samples_together(batchnorm):
    plan = plan_of(replace(CONFIG, batchnorm=batchnorm), model=nn.BatchNorm1d(2))
    assert not plan.by_length
    assert plan.in_step == (batchnorm == "synced")


@pytest.mark.parametrize("task", [SmallBert, Tokens])
def test_several_passes_of_one_rank_change_no_loss(task, monkeypatch):
    monkeypatch.setattr(build, "PASS_TOKENS", {"cpu": 4.0})
    found = {}
    for balanced in (False, True):
        config = replace(CONFIG, length_balance=balanced)
        trainer = trainer_of(config, Ranks(), task(config))
        found[balanced] = trainer.fit()
        passes = {len(step.micro_batches) for step in trainer.plan.epoch(0, 0)}
        assert (max(passes) > 1) == balanced
    plain, cut = (found[balanced].steps for balanced in (False, True))
    assert [one.loss for one in cut] == pytest.approx([one.loss for one in plain], abs=1e-6)
    assert len(plain) == 20 and plain[0].loss - plain[-1].loss > 1e-3
    assert sum(one.local_tokens for one in cut) < 0.9 * sum(one.local_tokens for one in plain)


def test_lengths_of_a_cut_set_are_those_of_its_samples():
    class Texts(synthetic.Synthetic):
        def lengths(self, samples):
            return torch.arange(len(samples))

    task = Texts(CONFIG)
    cut = build.datasets(replace(CONFIG, train_samples=5), task)
    assert list(lengths_of(task, cut.train)) == [0, 1, 2, 3, 4]
    assert len(lengths_of(task, cut.evaluation[""])) == 509
    one = build.datasets(replace(CONFIG, train_samples=1), task).train
    assert lengths_of(task, one) == []  # all alike
    none = Subset(cut.evaluation[""], range(0))
    assert lengths_of(task, none) == []
