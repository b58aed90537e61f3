"""The loop around the sync modes: horizon, precision, dropout, buffers, padding, evaluation."""

import gc
import math
import random
import re
import tracemalloc
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

from configs import plugins
from configs.settings.train import TrainConfig
from tests.train import retained
from tests.train.alone import train as run
from tests.train.matrix_tasks import SmallBert
from tests.train.on_ranks import trainer_of
from tests.train.retained import losses
from tests.train.workers import records
from train.batches.plan import BatchPlan
from train.loop import build
from train.loop.step import TrainedModel, build_schedule
from train.loop.trainer import Trainer
from train.model.precision import Precision
from train.model.rng import set_dropout
from train.program.saved_objects import Checkpoints
from train.records import sinks
from train.records.schema import StepRecord
from train.records.sinks import Console, History
from train.records.summary import rows, summarise
from train.sync.ranks import Ranks
from train.tasks import synthetic

CPU = torch.device("cpu")
CONFIG = TrainConfig(
    task="synthetic", sync="single", lr=0.01, epochs=1, batch_size=256, device="cpu", dropout=0.0
)


def test_max_steps_only_stops(tmp_path):
    """The steps of a stopped run equal those of the whole run, including their learning rates."""
    whole, _ = run(CONFIG, tmp_path)
    cut, _ = run(replace(CONFIG, max_steps=5), tmp_path)
    assert len(whole.steps) == 8 and len(cut.steps) == 5
    for a, b in zip(whole.steps, cut.steps, strict=False):
        assert (a.loss, a.lr, a.grad_norm) == (b.loss, b.lr, b.grad_norm)
    assert [one.step for one in whole.evaluations] == [8]
    assert cut.evaluations == []  # its epoch did not end


def test_each_step_is_planned_once(tmp_path, monkeypatch):
    planned = []
    epoch = BatchPlan.epoch

    def counted(self, *given):
        for step in epoch(self, *given):
            planned.append(step)
            yield step

    monkeypatch.setattr(BatchPlan, "epoch", counted)
    run(CONFIG, tmp_path)
    assert len(planned) == 8


@pytest.mark.parametrize("mode", plugins.names("train.sync.modes"))
def test_every_mode_runs_alone_as_single_does(mode, tmp_path):
    alone, _ = run(CONFIG, tmp_path / "single")
    other, _ = run(replace(CONFIG, sync=mode), tmp_path / mode)
    assert losses(other) == losses(alone)
    assert {step.payload_bytes for step in other.steps} == {0}


@pytest.mark.parametrize(
    ("evaluate", "epochs", "at"),
    [("epoch", 2, [8, 16]), ("end", 2, [16]), ("never", 2, []), ("epoch", 0, [0])],
)
def test_when_to_evaluate(evaluate, epochs, at, tmp_path):
    history, _ = run(replace(CONFIG, evaluate=evaluate, epochs=epochs), tmp_path)
    assert [one.step for one in history.evaluations] == at


def test_an_evaluation_does_not_change_the_dropout_after_it(tmp_path):
    config = replace(CONFIG, dropout=0.5, epochs=2)
    with_evaluation, _ = run(config, tmp_path)
    without, _ = run(replace(config, evaluate="never"), tmp_path)
    assert losses(with_evaluation) == losses(without)


class Drawing(synthetic.Synthetic):
    """A task whose metric draws from every random generator, as a resampling metric does."""

    def metric(self, evaluation_set):
        random.random()
        numpy.random.rand()
        torch.rand(())
        return super().metric(evaluation_set)


@pytest.mark.parametrize("keep_best", [None, "accuracy"])
def test_numbers_that_an_evaluation_draws_change_no_loss(keep_best, tmp_path):
    config = replace(CONFIG, dropout=0.5, epochs=2, evaluate="never")
    evaluated = replace(config, evaluate="epoch", keep_best=keep_best)
    with_evaluation, _ = run(evaluated, tmp_path / "with", Drawing(config))
    without, _ = run(config, tmp_path / "without", Drawing(config))
    assert losses(with_evaluation) == losses(without)


def test_the_schedule_warms_up_and_decays_over_its_horizon():
    config = replace(CONFIG, warmup_steps=4, schedule_steps=10, lr=1.0)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = build_schedule(config, optimizer, epoch_steps=999)
    rates = []
    for _ in range(12):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0, 0.25, 0.5, 0.75, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0, 0])


@pytest.mark.parametrize(("max_steps", "warmup_steps"), [(None, 16), (4, 4), (4, 5)])
def test_warm_up_longer_than_the_run_is_named(tmp_path, max_steps, warmup_steps):
    config = replace(retained.CONFIG, max_steps=max_steps, warmup_steps=warmup_steps)
    _, lines = retained.run(config, tmp_path)
    named = [line for line in lines if "--warmup-steps" in line]
    assert len(named) == (warmup_steps == 5)
    for line in named:
        assert re.search(r" 5 steps .* 4 steps.* 6\.0e-03 .* 1\.0e-02", line)


def test_biases_and_norms_do_not_decay():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Embedding(5, 4))
    decays, keeps = build.optimizer(replace(CONFIG, weight_decay=0.1), model).param_groups
    assert decays["weight_decay"] == 0.1 and keeps["weight_decay"] == 0.0
    assert [p.shape for p in decays["params"]] == [(4, 3), (5, 4)]
    assert [p.shape for p in keeps["params"]] == [(4,), (4,), (4,)]


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp64"])
def test_other_precisions_learn_the_same(precision, tmp_path):
    plain, _ = run(CONFIG, tmp_path)
    other, trainer = run(replace(CONFIG, precision=precision), tmp_path)
    gap = max(abs(a - b) for a, b in zip(losses(plain), losses(other), strict=True))
    assert 0 < gap < {"bf16": 2e-2, "fp16": 1e-2, "fp64": 1e-5}[precision]
    norms = [one.grad_norm for one in other.steps]  # of the true gradient, not of a scaled one
    assert norms == pytest.approx([one.grad_norm for one in plain.steps], rel=0.2)
    retained = {parameter.dtype for parameter in trainer.model.parameters()}
    assert retained == {torch.float64 if precision == "fp64" else torch.float32}


def test_a_step_that_fp16_skips_keeps_the_learning_rate(tmp_path, monkeypatch):
    config = replace(CONFIG, precision="fp16", warmup_steps=4, max_steps=3)
    made = Precision.__init__

    def init(precision, name, device):
        made(precision, name, device)
        precision._init_scale = 2.0**120  # with which every gradient overflows

    monkeypatch.setattr(Precision, "__init__", init)
    history, _ = run(config, tmp_path)
    assert [one.lr for one in history.steps] == [0.0, 0.0, 0.0]
    assert not math.isfinite(history.steps[0].grad_norm)


def test_dropout_reaches_every_dropout_of_a_model():
    model, tokens = SmallBert(CONFIG).network(), torch.ones(4, 5, dtype=torch.long)
    set_dropout(model, 0.0)
    assert torch.equal(model(tokens).logits, model(tokens).logits)
    set_dropout(model, 0.5)
    assert not torch.equal(model(tokens).logits, model(tokens).logits)


def test_dropout_masks_differ_between_ranks_and_weights_do_not():
    seeds, params = [], []
    for rank in (0, 1):
        torch.manual_seed(rank)  # earlier random draws change nothing
        trainer = trainer_of(CONFIG, Ranks(rank, 1), synthetic.build(CONFIG))
        params.append(list(trainer.model.parameters()))
        seeds.append(torch.initial_seed())
    assert seeds[0] != seeds[1]
    assert all(map(torch.equal, *params))


def test_records_are_whole_and_summary_excludes_first_step(tmp_path):
    history, _ = run(CONFIG, tmp_path)
    kinds = [one["kind"] for one in records(tmp_path / "run", 0)]
    assert kinds == ["step"] * 8 + ["eval"]
    totals, summaries = History(evaluations=history.evaluations), []
    for number, step in enumerate(history.steps):
        sent = {"payload_bytes": 60 * (number % 2)}
        totals.add(replace(step, step_s=1000.0 if number == 0 else number, **sent))
        summaries.append(summarise({}, totals, totals.count))
    assert "step_s" not in summaries[0] and "samples_per_s" not in summaries[0]
    timed = summaries[1:]
    assert [one["step_s"] for one in timed] == [1, 1.5, 2, 2.5, 3, 3.5, 4]
    assert [one["payload_bytes_per_step"] for one in timed[:4]] == [60, 30, 40, 30]
    assert [one["timed_steps"] for one in timed] == [1, 2, 3, 4, 5, 6, 7]
    assert [one["steps"] for one in summaries] == [1, 2, 3, 4, 5, 6, 7, 8]
    summary = summaries[-1]
    assert summary["accuracy"] == history.evaluations[-1].metrics["accuracy"]
    assert summary["first_losses"] == losses(history)[:5]
    shown = dict(rows(summary, "logs/x y"))
    assert shown["run folder"] == "logs/x y"
    assert set(asdict(history.steps[0])) == set(StepRecord.__dataclass_fields__)


def test_gpu_step_is_recorded_after_next_pass_or_before_checkpoint(tmp_path, monkeypatch):
    """The trainer believes that its device is not a CPU, but everything is computed on one."""
    config = replace(CONFIG, dropout=0.5, max_steps=5, checkpoint_every="3")
    plain, _ = retained.run(config, tmp_path / "plain")
    events = []

    def noted(kind, name, word):
        call = getattr(kind, name)

        def noting(self, *given):
            events.append(f"{word} {getattr(given[0], 'step', given[0])}")
            return call(self, *given)

        monkeypatch.setattr(kind, name, noting)

    noted(TrainedModel, "forward_backward", "pass")
    noted(Checkpoints, "make", "save")
    other = property(lambda trainer: torch.device("meta"), lambda trainer, device: None)
    monkeypatch.setattr(Trainer, "device", other, raising=False)
    late, _ = retained.run(config, tmp_path / "late", lambda step: events.append(f"record {step}"))
    assert retained.results(late) == retained.results(plain)
    assert events == [
        "pass 1", "pass 2", "record 1", "pass 3", "record 2", "record 3", "save 3",
        "pass 4", "pass 5", "record 4", "record 5", "save 5",
    ]  # fmt: skip


def test_memory_does_not_grow_with_steps(tmp_path, monkeypatch):
    """After 120 steps Python uses as much memory as after 40, apart from its own fluctuations."""
    monkeypatch.setattr(retained, "FullHistory", History)
    held = []

    def note(step):
        if step in (40, 120):
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])

    config = replace(CONFIG, batch_size=8, evaluate="never", max_steps=120)
    tracemalloc.start()
    try:
        retained.run(config, tmp_path, at_step=note)
    finally:
        tracemalloc.stop()
    before, after = held
    assert after - before < 80 * 350  # bytes; a record has more than 500


@pytest.mark.parametrize(("env", "is_due"), [({"MUSTER_TTY": "60"}, True), ({}, False)])
def test_at_a_terminal_a_line_is_due_after_ten_seconds(monkeypatch, capsys, env, is_due):
    """Without a terminal, as in a log, no line is due."""
    now_s = [100.0]
    monkeypatch.setattr(sinks, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    console = Console(speaks=True, env=env)
    now_s[0] += 9.9
    assert not console.is_line_due
    now_s[0] += 0.2
    assert console.is_line_due == is_due
    console.line("step 7  loss 1.0")
    assert not console.is_line_due
    capsys.readouterr()
    quiet = Console(speaks=False, env=env)
    now_s[0] += 60
    assert not quiet.is_line_due


def test_due_line_is_printed_between_usual_step_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(Console, "is_line_due", property(lambda console: True))
    _, lines = retained.run(CONFIG, tmp_path)
    assert [line.split()[1] for line in lines if line.startswith("step ")] == [*"12345678"]


@pytest.mark.parametrize(
    ("speaks", "env", "has_bar"),
    [(True, {}, False), (False, {}, False), (True, {"MUSTER_TTY": "60"}, True)],
)
def test_the_console_draws_a_bar_only_on_a_terminal(speaks, env, has_bar, capsys):
    console = Console(speaks=speaks, env=env)
    console.start(3)
    console.advance(1.0)
    console.line("hello")
    console.table([("a", "b")])
    console.stop()
    out = capsys.readouterr().out
    assert ("hello" in out) == speaks
    assert ("\r" in out) == ("step" in out) == has_bar
    assert "\x1b[3" not in out  # its log is also read without a terminal
