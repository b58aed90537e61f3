"""A run that goes on from a checkpoint is the run that was never stopped, bit for bit."""

import os
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from tests.train.loop.test_export import Uncommon
from train.checkpoints import storage
from train.checkpoints.manager import CheckpointManager
from train.distributed.stop_request import StoppedCleanly
from train.loop.build import Builder
from train.records.console import Console
from train.records.sinks import Sinks
from train.sync.ranks import Ranks
from train.tasks import synthetic

CPU = torch.device("cpu")
# 2048 samples: 8 steps an epoch; dropout is on
CONFIG = TrainConfig(
    task="synthetic", sync="single", lr=0.01, epochs=2, batch_size=256, device="cpu", warmup_steps=3
)


class Lines(Console):
    def __init__(self) -> None:
        super().__init__(speaks=False)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def run(config, run_dir: Path, at_step=None, task=None):
    """One process alone; `at_step` is called with the trainer after each step."""
    console = Lines()
    sinks = Sinks(run_dir, 0)
    folder = config.checkpoint_dir or run_dir / "checkpoints"
    builder = Builder(config, Ranks(), CPU, task or synthetic.build(config), console, sinks)
    checkpoints = builder.checkpoints(folder, writes=True)
    trainer = builder.trainer(checkpoints)
    if at_step is not None:
        report = trainer._report
        trainer._report = lambda record: (report(record), at_step(record.step))
    try:
        trainer.go_on()
        trainer.fit()
    finally:
        checkpoints.close()
        sinks.close()
    return trainer, console.lines


def warnings(trainer) -> dict[int, tuple]:
    return {one.step: (one.loss, one.lr, one.grad_norm) for one in trainer.history.steps}


def bits(trainer) -> list[bytes]:
    states = [trainer.state.optimizer.state[param] for param in trainer.model.parameters()]
    retained = [one[key] for one in states for key in sorted(one)]
    tensors = [*trainer.model.parameters(), *retained]
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


def steps(folder: Path) -> list[int]:
    return [one.step for one in storage.found(folder)]


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "adadelta", "sgd"])
@pytest.mark.parametrize("cut", [3, 8, 11])
def test_going_on_is_as_never_having_stopped(tmp_path, optimizer, cut):
    config = replace(CONFIG, optimizer=optimizer)
    whole, _ = run(config, tmp_path / "whole")
    run(replace(config, max_steps=cut, checkpoint_every="1"), tmp_path / "cut")
    again, lines = run(replace(config, resume=str(tmp_path / "cut")), tmp_path / "again")
    assert lines[0] == f"going on from step {cut} ({tmp_path / 'cut'})"
    assert warnings(again) == {step: one for step, one in warnings(whole).items() if step > cut}
    assert bits(again) == bits(whole)
    ended = [(one.step, one.epoch, one.metrics) for one in again.history.evaluations]
    assert ended == [(one.step, one.epoch, one.metrics) for one in whole.history.evaluations]
    assert again.history.first_losses == whole.history.first_losses


@pytest.mark.parametrize("kind", ["tied", "frozen", "adapted"])
def test_uncommon_models_go_on_as_never_having_stopped(tmp_path, kind):
    config = replace(CONFIG, weight_decay=0.1)
    whole, _ = run(config, tmp_path / "whole", task=Uncommon(config, kind))
    cut = replace(config, max_steps=5, checkpoint_every="5")
    run(cut, tmp_path / "cut", task=Uncommon(config, kind))
    go_on = replace(config, resume=str(tmp_path / "cut"))
    again, _ = run(go_on, tmp_path / "again", task=Uncommon(config, kind))
    assert warnings(again) == {step: one for step, one in warnings(whole).items() if step > 5}
    assert bits(again) == bits(whole)


@pytest.mark.parametrize(
    ("every", "keep_last", "retained"),
    # None: where the disk is slow, one comes a step later, or not before the next
    [("never", 2, []), ("3", 99, None), ("epoch", 9, [16, 8]), ("1e-9min", 99, None)],
)
def test_when_checkpoints_are_made_and_which_are_kept(tmp_path, every, keep_last, retained):
    run(replace(CONFIG, checkpoint_every=every, keep_last=keep_last), tmp_path)
    found = steps(tmp_path / "checkpoints")
    assert found == retained if retained is not None else found[0] == 16


END = 99


@pytest.mark.parametrize(
    ("every", "free_at", "retained", "warnings"),
    [
        ("3", 10, [16, 15, 12, 3], "step 6"),
        ("3", END, [16, 3], "step 6"),
        ("epoch", END, [16, 8], "step 16"),
        ("1e-9min", 5, None, "step 2"),  # later ones come in one step or the next
    ],
)
def test_while_one_is_written_others_are_skipped_with_one_warning_and_the_end_waits(
    tmp_path, monkeypatch, capsys, every, free_at, retained, warnings
):
    write, is_due_at_end = storage._write, CheckpointManager.is_due_at_end
    is_free, writers = threading.Event(), []

    def slow(*given):
        writers.append(threading.current_thread())
        is_free.wait(60)
        write(*given)

    def at_step(step):
        if step >= free_at:
            is_free.set()
            writers[-1].join()

    def at_end(checkpoints, step):
        threading.Timer(0.2, is_free.set).start()
        return is_due_at_end(checkpoints, step)

    monkeypatch.setattr(storage, "_write", slow)
    monkeypatch.setattr(CheckpointManager, "is_due_at_end", at_end)
    run(replace(CONFIG, checkpoint_every=every, keep_last=99), tmp_path, at_step)
    found = steps(tmp_path / "checkpoints")
    assert (
        found == retained
        if retained
        else (found[0], found[-1]) == (16, 1) and not {2, 5} & set(found)
    )
    warned = [line for line in capsys.readouterr().err.splitlines() if "is slow" in line]
    assert warned[0].startswith(f"warning: {warnings}: no checkpoint, for the disk is slow: step ")
    busy_with = [line.split(": step ")[-1].split()[0] for line in warned]
    assert len(set(busy_with)) == len(warned) and (retained is None or len(warned) == 1)


def test_an_earlier_run_in_the_same_folder_is_left_alone_and_not_gone_on_from(tmp_path):
    config = replace(CONFIG, checkpoint_dir=tmp_path / "here", keep_last=2)
    for last in (15, 16):
        going_on = replace(config, checkpoint_every="99", resume="auto", max_steps=last)
        run(going_on, tmp_path / f"to_{last}")
    assert set(steps(tmp_path / "here")) == {16, 15}
    run(replace(config, checkpoint_every="1", max_steps=4), tmp_path / "b")
    assert steps(tmp_path / "here")[0] == 4
    assert {16, 15} < set(steps(tmp_path / "here"))
    again = replace(config, resume="auto", checkpoint_every="1", max_steps=6)
    _, lines = run(again, tmp_path / "c")
    assert lines[0] == f"going on from step 4 ({tmp_path / 'here'})"
    found = steps(tmp_path / "here")
    assert found[0] == 6 and len(found) == 4 and {16, 15} < set(found)  # two of each


def test_a_run_that_goes_on_from_an_older_checkpoint_is_the_newer_one(tmp_path):
    config = replace(CONFIG, checkpoint_dir=tmp_path / "here", keep_last=9)
    for stop in (4, 8, 12):
        run(replace(config, checkpoint_every="4", max_steps=stop, resume="auto"), tmp_path / "a")
    assert steps(tmp_path / "here") == [12, 8, 4]
    older = str(tmp_path / "here" / "step_00000004")
    run(replace(config, resume=older, checkpoint_every="9", max_steps=6), tmp_path / "b")
    assert steps(tmp_path / "here") == [6, 12, 8, 4]
    _, lines = run(replace(config, resume="auto", max_steps=7), tmp_path / "c")
    assert lines[0] == f"going on from step 6 ({tmp_path / 'here'})"


def test_the_best_by_a_metric_is_kept(tmp_path):
    trainer, _ = run(
        replace(CONFIG, epochs=4, keep_best="eval_loss", keep_last=1, lr=0.3), tmp_path
    )
    losses = {one.step: one.metrics["eval_loss"] for one in trainer.history.evaluations}
    best = min(losses, key=losses.__getitem__)
    assert best in steps(tmp_path / "checkpoints")


def test_a_metric_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--keep-best f1: there is accuracy, eval_loss"):
        run(replace(CONFIG, keep_best="f1"), tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_signal_ends_the_step_and_leaves_a_checkpoint(tmp_path, number):
    whole, _ = run(CONFIG, tmp_path / "whole")

    def at_step(step):
        if step == 5:
            os.kill(os.getpid(), number)

    with pytest.raises(StoppedCleanly) as stopped:
        run(CONFIG, tmp_path / "cut", at_step)
    assert stopped.value.why == signal.Signals(number).name
    # the signal came after step 5 had been agreed on: the next one is the last
    assert stopped.value.step == 6 and steps(tmp_path / "cut" / "checkpoints") == [6]
    again, _ = run(replace(CONFIG, resume=str(tmp_path / "cut")), tmp_path / "again")
    assert bits(again) == bits(whole)


def test_a_stop_at_the_end_of_an_epoch_comes_after_its_evaluation(tmp_path):
    def at_step(step):
        if step == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedCleanly):
        run(CONFIG, tmp_path, at_step)
    again, _ = run(replace(CONFIG, resume="auto"), tmp_path)
    assert [(one.step, one.epoch) for one in again.history.evaluations] == [(8, 1), (16, 2)]


def test_auto_starts_where_there_is_nothing_and_goes_on_where_there_is(tmp_path):
    config = replace(CONFIG, resume="auto", checkpoint_dir=tmp_path / "here", checkpoint_every="4")
    _, lines = run(replace(config, max_steps=5), tmp_path / "a")
    assert lines[0] == f"no checkpoint in {tmp_path / 'here'} yet: starting from the beginning"
    _, lines = run(config, tmp_path / "b")
    assert lines[0] == f"going on from step 5 ({tmp_path / 'here'})"


def test_what_is_damaged_is_passed_over_with_a_word(tmp_path):
    run(replace(CONFIG, max_steps=6, checkpoint_every="3"), tmp_path / "cut")
    path = tmp_path / "cut" / "checkpoints" / "step_00000006" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for place in (tmp_path / "cut", path.parent):
        again, lines = run(replace(CONFIG, resume=str(place)), tmp_path / place.name / "again")
        assert "is damaged" in lines[0] and lines[0].endswith("; trying the one before it")
        assert min(warnings(again)) == 4
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step_00000003")
    with pytest.raises(UsageError, match="no whole checkpoint"):
        run(replace(CONFIG, resume=str(tmp_path / "cut")), tmp_path / "again")


def test_nothing_at_a_given_place_is_an_error(tmp_path):
    with pytest.raises(UsageError, match=f"--resume {tmp_path}: no checkpoint in"):
        run(replace(CONFIG, resume=str(tmp_path)), tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 128}, "--batch-size is 128, but was 256 in the checkpoint; give 256, or"),
        ({"seed": 1}, "--seed is 1, but was 42"),
        ({"lr": 0.5}, "--lr is 0.5, but was 0.01 in the checkpoint; give 0.01, or --reset-lr-sch"),
        ({"optimizer": "sgd"}, "--optimizer is sgd, but was adamw in the checkpoint"),
        ({"precision": "fp64"}, "is torch.float32, this model's is torch.float64; see --precision"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, change, message):
    run(replace(CONFIG, max_steps=2, checkpoint_every="2"), tmp_path / "cut")
    with pytest.raises(UsageError) as error:
        run(replace(CONFIG, resume=str(tmp_path / "cut"), **change), tmp_path / "again")
    assert message in str(error.value)


def test_a_schedule_that_would_end_elsewhere_is_refused(tmp_path):
    """The learning rate of the next step would jump."""
    run(replace(CONFIG, max_steps=8, checkpoint_every="8"), tmp_path / "cut")
    longer = replace(CONFIG, resume=str(tmp_path / "cut"), epochs=4)
    with pytest.raises(UsageError) as error:
        run(longer, tmp_path / "again")
    assert str(error.value).endswith(
        "its learning rate decays until step 16, but with --epochs 4 and --schedule-steps unset "
        "it does until step 32; give --schedule-steps 16, or --reset-lr-scheduler"
    )
    whole, _ = run(CONFIG, tmp_path / "whole")
    same, _ = run(replace(longer, schedule_steps=16, max_steps=12), tmp_path / "same")
    assert warnings(same) == {step: one for step, one in warnings(whole).items() if 8 < step <= 12}
    run(replace(longer, reset_lr_scheduler=True), tmp_path / "reset")
    steady = replace(CONFIG, schedule="constant")
    run(replace(steady, max_steps=8, checkpoint_every="8"), tmp_path / "steady")
    run(replace(steady, resume=str(tmp_path / "steady"), epochs=3), tmp_path / "steadier")


def test_another_model_is_refused(tmp_path):
    class Wider(synthetic.Synthetic):
        def build_model(self):
            return torch.nn.Sequential(torch.nn.Linear(8, 9), torch.nn.Linear(9, 2))

    run(replace(CONFIG, max_steps=2, checkpoint_every="2"), tmp_path / "cut")
    with pytest.raises(UsageError, match=r"it has no 1\.bias\n"):
        run(replace(CONFIG, resume=str(tmp_path / "cut")), tmp_path / "b", task=Wider(CONFIG))


def test_parts_can_be_reset(tmp_path):
    run(replace(CONFIG, max_steps=11, checkpoint_every="11"), tmp_path / "cut")
    base = replace(CONFIG, resume=str(tmp_path / "cut"))

    fresh, _ = run(replace(base, reset_lr_scheduler=True), tmp_path / "lr")
    assert fresh.history.steps[0].lr == 0.0 and warnings(fresh)[12][1] == 0.0  # its warm-up, again
    fresh, _ = run(replace(base, reset_optimizer=True, optimizer="sgd"), tmp_path / "optimizer")
    assert min(warnings(fresh)) == 12
    fresh, _ = run(replace(base, reset_data=True, batch_size=512), tmp_path / "data")
    assert sorted(warnings(fresh)) == list(range(12, 20))  # two epochs of four steps, after the 11
    assert [one.epoch for one in fresh.history.steps] == [1] * 4 + [2] * 4


def test_one_that_cannot_be_written_at_the_end_is_an_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")

    def at_step(step):
        os.kill(os.getpid(), signal.SIGTERM)

    from muster.errors import MusterError

    with pytest.raises(MusterError, match="step 2: no checkpoint could be written to"):
        run(replace(CONFIG, checkpoint_dir=blocked), tmp_path / "run", at_step)
