"""`--split auto` in a training: it changes who computes what, and nothing else."""

import json

import pytest
import torch

from configs.settings.train import TrainConfig
from tests.launch.submit import submit
from train.batches.auto_split import probe
from train.batches.auto_split.probe import Probe
from train.batches.auto_split.splitter import Splitter
from train.batches.auto_split.step_cost import Cost
from train.batches.plan import BatchPlan
from train.loop.optimizer import build_optimizer
from train.records.schema import StepRecord
from train.sync.ranks import Ranks
from train.tasks import synthetic

CPU = torch.device("cpu")


def measured(task, share=16, optimizer="adamw", lengths=()):
    model, samples = task.build_model(), task.build_datasets().train
    config = TrainConfig(task="synthetic", optimizer=optimizer, lr=0.1, weight_decay=0.1)
    return model, probe.measure(
        model,
        build_optimizer(config, model),
        lambda chosen: task.collate([samples[at] for at in chosen]),
        lambda batch: task.forward(model, batch).loss.sum(),
        size=len(samples),
        share=share,
        sharers=1,
        lengths=lengths,
    )


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "adadelta", "sgd"])
def test_measuring_leaves_no_trace(optimizer):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model, _ = measured(synthetic.build(TrainConfig(task="synthetic")), optimizer=optimizer)
    torch.manual_seed(3)
    untouched = synthetic.build(TrainConfig(task="synthetic")).build_model()
    after = torch.get_rng_state()
    assert not torch.equal(before, after)
    for one, other in zip(model.parameters(), untouched.parameters(), strict=True):
        assert torch.equal(one, other) and one.grad is None
    torch.manual_seed(3)
    measured(synthetic.build(TrainConfig(task="synthetic")))
    assert torch.equal(torch.get_rng_state(), after)


class Normalised(synthetic.Synthetic):
    """A network that refuses a batch of one, and has a cache that grows."""

    def build_model(self):
        self.cache = torch.zeros(0)
        model = torch.nn.Sequential(super().build_model(), torch.nn.BatchNorm1d(2))
        model.register_buffer("cache", self.cache)
        return model

    def forward(self, model, batch):
        model.cache = torch.arange(float(len(batch["labels"])))
        return super().forward(model, batch)


@pytest.mark.parametrize("share", [1, 2, 3, 7])
def test_a_small_share_is_measured_with_batchnorm(share):
    task = Normalised(TrainConfig(task="synthetic"))
    model, found = measured(task, share=share)
    assert found.cost.beta_s > 0
    assert model.cache is task.cache and model[1].running_mean.tolist() == [0.0, 0.0]


def test_a_slow_task_is_measured_as_slow(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(probe.time, "perf_counter", lambda: clock[0])

    class Slow(synthetic.Synthetic):
        def forward(self, model, batch):
            clock[0] += 0.5 + 0.25 * len(batch["labels"])
            return super().forward(model, batch)

    _, found = measured(Slow(TrainConfig(task="synthetic")))
    assert found.cost.alpha_s == pytest.approx(0.5) and found.cost.beta_s == pytest.approx(0.25)
    assert found.forward == found.cost
    assert found.pass_samples == pytest.approx(2.0)
    _, found = measured(Slow(TrainConfig(task="synthetic")), lengths=[3, 1] * 1024)
    # each of the chosen is as long as one and a half
    assert found.cost.beta_s == pytest.approx(0.25 / 1.5)
    assert found.pass_samples == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("mean_tokens", "local_tokens", "slowed"),
    [(0.0, 0, 1.0), (10.0, 640, 1.0), (10.0, 320, 2.0)],  # half the tokens in the same time
)
def test_where_lengths_count_tokens_tell_how_fast_a_rank_was(
    mean_tokens, local_tokens, slowed, monkeypatch
):
    shown = []
    splitter = Splitter(
        Ranks(), 64, "single", lambda line: None, lambda record: None, mean_tokens=mean_tokens
    )
    cost = Cost(0.0, 0.01)
    splitter.begin(Probe(cost, cost, 0), torch.nn.Linear(2, 2), CPU)
    step = StepRecord(
        step=1, epoch=1, rank=0, loss=1.0, samples=64, local_samples=64, data_s=0.0,
        forward_s=0.64, backward_s=0.0, sync_s=0.0, optimizer_s=0.0, step_s=0.64, lr=0.1,
        grad_norm=1.0, payload_bytes=0, local_tokens=local_tokens,
    )  # fmt: skip
    monkeypatch.setattr(Ranks, "all_gather", lambda ranks, own: shown.append(own) or own[None])
    splitter.after_epoch([step, step], CPU, is_last=True)
    assert shown[0].item() == pytest.approx(slowed)


def test_alone_there_is_nothing_to_split(capsys):
    message = []
    splitter = Splitter(Ranks(), 64, "single", message.append, lambda record: None)
    cost = Cost(0.01, 0.01)
    plan = splitter.begin(Probe(cost, cost, 0), torch.nn.Linear(2, 2), CPU)
    assert plan.weights == (1.0,) and message[0].endswith("even parts are best")
    assert splitter.restore(splitter.state()) == plan


def test_what_does_not_fit_is_cut_into_micro_batches():
    plan = BatchPlan(40, 40, (3.0, 1.0), 1, 0, limits=(8, 0))
    (first,), (second,) = plan.epoch(0, 0), plan.epoch(0, 1)
    assert [micro.samples for micro in first.micro_batches] == [8, 8, 7, 7]
    assert [micro.samples for micro in second.micro_batches] == [10]
    in_step = BatchPlan(40, 40, (3.0, 1.0), 1, 0, limits=(8, 0), in_step=True)
    assert [len(next(in_step.epoch(0, rank)).micro_batches) for rank in (0, 1)] == [4, 4]


def test_a_run_with_it_has_the_losses_of_one_without(tmp_path):
    flags = ["--task", "synthetic", "--nodes", "3", "--dropout", "0", "--logs-dir", str(tmp_path)]
    losses = {}
    for split in ("even", "auto"):
        code, out, err = submit(*flags, "--split", split, "--run-id", split, "--max-steps", "40")
        assert code == 0, err
        lines = (tmp_path / split / "metrics" / "rank_00000.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        losses[split] = [one["loss"] for one in records if one["kind"] == "step"]
    assert "split auto: bound by " in out and "split auto: got " in out
    plans = [one for one in records if one["kind"] == "split"]
    assert plans and sum(plans[0]["parts"]) == 64 and len(plans[0]["beta_s"]) == 3
    assert losses["auto"] == pytest.approx(losses["even"], abs=1e-6)


def test_a_resumed_run_keeps_its_plan_and_its_bits(tmp_path):
    flags = ["--task", "synthetic", "--nodes", "2", "--logs-dir", str(tmp_path), "--split", "auto"]
    short = ["--epochs", "1", "--evaluate", "never", "--checkpoint-every", "12", "--resume", "auto"]
    code, out, err = submit(*flags, *short, "--run-id", "whole", "--keep-last", "9")
    assert code == 0 and "yet: starting from the beginning" in out, err
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "checkpoints").mkdir()
    first = "checkpoints/step_00000012"
    (tmp_path / "whole" / first).rename(tmp_path / "cut" / first)
    again = [*short[:-1], str(tmp_path / "cut"), "--run-id", "again"]
    code, out, err = submit(*flags, *again)
    assert code == 0 and "split auto: going on with the checkpoint's plan" in out, err
    losses = {}
    for run in ("whole", "again"):
        lines = (tmp_path / run / "metrics" / "rank_00000.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        losses[run] = {one["step"]: one["loss"] for one in records if one["kind"] == "step"}
    assert losses["again"] == {step: one for step, one in losses["whole"].items() if step > 12}
