"""When checkpoints are made, which are kept, and what a signal leaves."""

import os
import signal
import threading
from dataclasses import replace

import pytest

from muster.errors import MusterError, UsageError
from tests.train.retained import CONFIG, bits, run, steps
from train.checkpoints import manager, storage
from train.checkpoints.manager import CheckpointManager
from train.checkpoints.writer import Writer
from train.distributed.stop_request import StoppedCleanly


@pytest.mark.parametrize(("every", "retained"), [("never", []), ("epoch", [16, 8])])
def test_checkpoints_are_made_after_epochs_or_never(tmp_path, every, retained):
    run(replace(CONFIG, checkpoint_every=every), tmp_path)
    assert steps(tmp_path / "checkpoints") == retained


END = 99


@pytest.mark.parametrize(
    ("every", "free_at", "slow_s", "retained", "skipped", "warned"),
    [
        ("3", 10, 0, [16, 15, 12, 3], 6, True),
        ("3", END, 0, [16, 3], 6, True),
        ("epoch", END, 0, [16, 8], 16, True),
        ("1e-9min", 5, 0, None, 2, True),  # later ones come in one step or the next
        ("1", 3, 3600, None, 2, False),  # steps are fast, the disk is not slow
    ],
)
def test_while_one_is_written_others_are_skipped_with_one_warning_and_the_end_waits(
    tmp_path, monkeypatch, capsys, every, free_at, slow_s, retained, skipped, warned
):
    monkeypatch.setattr(manager, "SLOW_S", slow_s)
    write, is_due_at_end = storage._write, CheckpointManager.is_due_at_end
    is_free = threading.Event()

    def slow(*given):
        is_free.wait(300)
        write(*given)

    def at_step(step):
        if step >= free_at:
            is_free.set()
            for thread in threading.enumerate():
                if thread.name == "checkpoint":
                    thread.join()

    def at_end(checkpoints, step):
        threading.Timer(0.2, is_free.set).start()
        return is_due_at_end(checkpoints, step)

    monkeypatch.setattr(storage, "_write", slow)
    monkeypatch.setattr(CheckpointManager, "is_due_at_end", at_end)
    run(replace(CONFIG, checkpoint_every=every, keep_last=99), tmp_path, at_step)
    found = steps(tmp_path / "checkpoints")
    assert found == (retained or found)
    assert found[0] == 16 and (skipped not in found or skipped == 16)
    warning = f"warning: step {skipped}: no checkpoint, since the disk is slow: step "
    lines = [line for line in capsys.readouterr().err.splitlines() if "no checkpoint" in line]
    assert [line.startswith(warning) for line in lines] == [True] * warned


def test_whatever_keeps_one_from_being_written_is_said_in_one_line(tmp_path, capsys):
    noted = []
    writer = Writer(tmp_path, keep_last=1, rank=0, note=noted.append)
    writer.start(3, {"model": {"w": lambda: None}}, {}, (0, 0), stall_s=0.0)
    writer.wait()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: step 3: no checkpoint in {tmp_path}: ")
    assert f"warning: {noted[0].error}" == line


def test_an_earlier_run_in_the_same_folder_is_left_alone_and_not_gone_on_from(tmp_path):
    config = replace(CONFIG, checkpoint_dir=tmp_path / "here", keep_last=2)
    begins = (f"no checkpoint in {tmp_path / 'here'} yet: starting", "going on from step 15 (")
    for last, begin in zip((15, 16), begins, strict=True):
        going_on = replace(config, checkpoint_every="99", resume="auto", max_steps=last)
        _, lines = run(going_on, tmp_path / f"to_{last}")
        assert lines[0].startswith(begin)
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
    config = replace(CONFIG, epochs=4, keep_best="eval_loss", keep_last=1, lr=0.3)
    trainer, _ = run(config, tmp_path)
    losses = {one.step: one.metrics["eval_loss"] for one in trainer.history.evaluations}
    best = min(losses, key=losses.__getitem__)
    assert best in steps(tmp_path / "checkpoints")
    with pytest.raises(UsageError, match="--keep-best f1: there is accuracy, eval_loss"):
        run(replace(CONFIG, keep_best="f1"), tmp_path / "other")


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


def test_one_that_cannot_be_written_at_the_end_is_an_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")

    def at_step(step):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(MusterError, match="step 2: no checkpoint could be written to"):
        run(replace(CONFIG, checkpoint_dir=blocked), tmp_path / "run", at_step)
