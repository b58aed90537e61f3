"""When checkpoints are made, which are kept, and what a signal leaves behind."""

import errno
import json
import os
import signal
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from muster.errors import NO_RETRY, UsageError
from muster.orderly_stop import StoppedCleanly
from tests.commands import call
from tests.train.retained import CONFIG, bits, run, steps
from tests.train.workers import results_of
from train.checkpoints import manager, storage
from train.checkpoints.manager import CheckpointManager, StepRequests
from train.checkpoints.object_states import ObjectStates
from train.checkpoints.storage import SavedState
from train.checkpoints.writer import NotWritten, TrainedButNotSaved, Writer
from train.tasks import synthetic


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
def test_slow_write_skips_checkpoints_with_one_warning_and_delays_the_end(
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
    warning = f"warning: step {skipped}: no checkpoint, "
    lines = [line for line in capsys.readouterr().err.splitlines() if "no checkpoint" in line]
    assert [
        line.startswith(warning) and "disk is slow: writing step " in line for line in lines
    ] == ([True] * warned)


def test_failed_write_is_reported_in_one_line(tmp_path, capsys):
    noted = []
    writer = Writer(tmp_path, keep_last=1, rank=0, note=noted.append)
    saved = SavedState(step=3, world_size=1)
    writer.start({"objects.pt": {"w": lambda: None}}, saved, stall_s=0.0)
    writer.wait()
    (line,) = capsys.readouterr().err.splitlines()
    folder = f"{tmp_path} on {socket.gethostname()}"
    assert line.startswith(f"warning: step 3: the checkpoint could not be written to {folder}: ")
    assert f"warning: {noted[0].error}" == line


def test_runs_that_resume_continue_the_chain_of_a_folder(tmp_path):
    config = replace(CONFIG, checkpoint_dir=tmp_path / "here", keep_last=2, checkpoint_every="99")
    begins = (f"no checkpoint in {tmp_path / 'here'} ", "resuming from step 15 (")
    for last, begin in zip((15, 16), begins, strict=True):
        going_on = replace(config, resume="auto", max_steps=last, run_id=f"job-{last}")
        _, lines = run(going_on, tmp_path / f"to_{last}")
        assert lines[0].startswith(begin)
    assert steps(tmp_path / "here") == [16, 15]
    assert storage.run_of(storage.list_checkpoints(tmp_path / "here")[0]) == "job-16"


@pytest.mark.parametrize("resume", [None, "elsewhere"])
def test_run_that_does_not_go_on_from_the_folder_of_another_is_refused(tmp_path, resume):
    config = replace(CONFIG, checkpoint_every="4", max_steps=4, run_id="first")
    run(config, tmp_path / "elsewhere")
    here = replace(config, checkpoint_dir=tmp_path / "here")
    run(here, tmp_path / "a")
    stepped = []
    asked = None if resume is None else str(tmp_path / resume)
    for run_id in ("second", None):
        with pytest.raises(UsageError) as error:
            again = replace(here, resume=asked, run_id=run_id)
            run(again, tmp_path / "b", stepped.append)
        start = "" if asked is None else f"--resume {asked}: "
        assert str(error.value).startswith(f"{start}{tmp_path / 'here'} contains checkpoints ")
        assert "--resume auto" in str(error.value)
    assert not stepped and steps(tmp_path / "here") == [4]


def test_restarted_run_sets_its_own_checkpoints_aside(tmp_path, monkeypatch, capsys):
    """The run starts from the beginning again, or torchrun has restarted it."""
    here = tmp_path / "here"
    config = replace(CONFIG, checkpoint_dir=here, checkpoint_every="4", max_steps=4)
    run(replace(config, run_id="run"), tmp_path / "a")
    run(replace(config, run_id="run"), tmp_path / "b")
    line = f"the checkpoints of step 4 in {here}"
    warned = capsys.readouterr().err
    assert line in warned and f" {here / storage.SET_ASIDE}" in warned
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    run(replace(config, run_id="other"), tmp_path / "c")
    assert steps(here) == [4]
    assert steps(here / storage.SET_ASIDE) == [4] and len([*(here / "set_aside").iterdir()]) == 2


def test_checkpoints_later_than_the_one_resumed_from_are_set_aside(tmp_path):
    here = tmp_path / "here"
    config = replace(CONFIG, checkpoint_dir=here, keep_last=9)
    for stop in (4, 8, 12):
        run(replace(config, checkpoint_every="4", max_steps=stop, resume="auto"), tmp_path / "a")
    assert steps(here) == [12, 8, 4]
    older = str(here / "step_00000004")
    run(replace(config, resume=older, checkpoint_every="9", max_steps=9), tmp_path / "b")
    assert steps(here) == [9, 4] and steps(here / storage.SET_ASIDE) == [12, 8]
    _, lines = run(replace(config, resume="auto", max_steps=10), tmp_path / "c")
    assert lines[0] == f"resuming from step 9 ({here})"
    aside, lines = run(
        replace(CONFIG, resume=str(here / storage.SET_ASIDE), max_steps=13), tmp_path / "d"
    )
    assert aside.position.step == 13


def test_best_checkpoint_by_metric_is_kept(tmp_path):
    config = replace(CONFIG, epochs=4, keep_best="eval_loss", keep_last=1, lr=0.3)
    trainer, _ = run(config, tmp_path)
    losses = {
        evaluation.step: evaluation.metrics["eval_loss"]
        for evaluation in trainer.history.evaluations
    }
    best = min(losses, key=losses.__getitem__)
    assert best in steps(tmp_path / "checkpoints")


class Perplexed(synthetic.Synthetic):
    """Its metric has these values, evaluation by evaluation."""

    def __init__(self, *values):
        super().__init__(CONFIG)
        self._values = iter(values)

    def metric(self, evaluation_set):
        found = super().metric(evaluation_set)
        compute = found.compute
        found.compute = lambda: {**compute(), "mine": next(self._values)}
        return found


ANY = 0.0  # before the training, to find the metric's name


def steps_kept(tmp_path, keep_best, *values):
    config = replace(CONFIG, epochs=len(values), keep_best=keep_best, keep_last=1)
    run(replace(config, checkpoint_every="epoch"), tmp_path, task=Perplexed(ANY, *values))
    return steps(tmp_path / "checkpoints")


def test_keep_best_by_minimum_keeps_the_lowest(tmp_path):
    assert steps_kept(tmp_path, "mine:min", 9.0, 3.0, 5.0, 4.0) == [32, 16]


def test_nan_metric_is_never_the_best(tmp_path, capsys):
    assert steps_kept(tmp_path / "a", "mine:max", float("nan"), 2.0, float("nan"), 1.0) == [32, 16]
    printed = capsys.readouterr().err
    assert "--keep-best mine: its value after step 8 is nan" in printed
    assert "no checkpoint was kept" not in printed
    assert steps_kept(tmp_path / "b", "mine:max", float("nan"), float("nan")) == [16]
    assert "--keep-best mine: no checkpoint was kept" in capsys.readouterr().err


def test_patience_ends_a_run_without_improvement(tmp_path):
    folder = tmp_path / "checkpoints"
    config = replace(CONFIG, epochs=5, keep_best="mine:min", checkpoint_dir=folder, keep_last=9)
    first = replace(config, patience=1)
    _, lines = run(first, tmp_path / "a", task=Perplexed(ANY, 9.0, 3.0, 5.0))
    assert lines[-1].startswith("--patience 1: ") and lines[-1].endswith(" step 24")
    assert steps(folder) == [16, 8]
    # a resumed run continues the count, from the best so far and the steps after it
    again = replace(config, patience=2, resume="auto")
    trainer, lines = run(again, tmp_path / "b", task=Perplexed(ANY, 5.0, 6.0))
    assert trainer.position.step == 32 and lines[-1].startswith("--patience 2: ")


def interrupt_at(last):
    """Return a callback that stops a run after step `last`."""
    return lambda step: step == last - 1 and os.kill(os.getpid(), signal.SIGTERM)


def test_run_stopped_at_epoch_end_evaluates_when_resumed(tmp_path):
    folder = tmp_path / "checkpoints"
    config = replace(CONFIG, keep_best="mine:min", checkpoint_dir=folder)
    with pytest.raises(StoppedCleanly, match="after step 16"):
        run(config, tmp_path / "a", interrupt_at(16), task=Perplexed(ANY, 9.0))
    resumed = replace(config, resume="auto")
    trainer, _ = run(resumed, tmp_path / "b", task=Perplexed(ANY, 5.0))
    assert [one.step for one in trainer.history.evaluations] == [8, 16]
    assert trainer.manager.best_step() == 16


def test_fewer_steps_than_a_checkpoint_has_still_evaluate_its_last_epoch(tmp_path):
    folder = tmp_path / "checkpoints"
    config = replace(CONFIG, checkpoint_dir=folder)
    with pytest.raises(StoppedCleanly, match="after step 16"):
        run(config, tmp_path / "a", interrupt_at(16))
    resumed = replace(config, resume="auto", max_steps=9)
    trainer, _ = run(resumed, tmp_path / "b")
    assert [one.step for one in trainer.history.evaluations] == [8, 16]


def test_patience_counts_the_epoch_at_whose_end_a_run_was_stopped(tmp_path):
    folder = tmp_path / "checkpoints"
    config = replace(CONFIG, epochs=3, keep_best="mine:min", checkpoint_dir=folder, patience=1)
    with pytest.raises(StoppedCleanly, match="after step 16"):
        run(config, tmp_path / "a", interrupt_at(16), task=Perplexed(ANY, 9.0))
    resumed = replace(config, resume="auto")
    trainer, _ = run(resumed, tmp_path / "b", task=Perplexed(ANY, 5.0, 3.0))
    assert trainer.position.step == 24 and trainer.manager.best_step() == 24


def test_keep_best_of_unknown_metric_is_refused_before_the_first_step(tmp_path):
    stepped = []
    with pytest.raises(UsageError, match=r"--keep-best f1: .*accuracy, eval_loss"):
        run(replace(CONFIG, keep_best="f1"), tmp_path, stepped.append)
    assert not stepped


def test_resume_with_another_keep_best_metric_is_refused(tmp_path):
    run(replace(CONFIG, epochs=1, schedule_steps=16, keep_best="accuracy"), tmp_path / "cut")
    again = replace(CONFIG, schedule_steps=16, resume=str(tmp_path / "cut"))
    with pytest.raises(UsageError, match=r"is eval_loss:min, .* of step 8, .* accuracy:max"):
        run(replace(again, keep_best="eval_loss"), tmp_path / "again")
    run(again, tmp_path / "none")
    run(replace(again, keep_best="accuracy"), tmp_path / "same")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_signal_ends_the_run_after_its_step_with_a_checkpoint(tmp_path, number):
    whole, _ = run(CONFIG, tmp_path / "whole")

    def at_step(step):
        if step == 5:
            os.kill(os.getpid(), number)

    with pytest.raises(StoppedCleanly) as stopped:
        run(CONFIG, tmp_path / "cut", at_step)
    assert stopped.value.why == signal.Signals(number).name
    # the signal came after step 5 had been agreed on, so the next step is the last
    assert stopped.value.step == 6 and steps(tmp_path / "cut" / "checkpoints") == [6]
    again, _ = run(replace(CONFIG, resume=str(tmp_path / "cut")), tmp_path / "again")
    assert bits(again) == bits(whole)


def test_stop_at_epoch_end_comes_after_the_evaluation(tmp_path):
    def at_step(step):
        if step == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedCleanly):
        run(CONFIG, tmp_path, at_step)
    again, _ = run(replace(CONFIG, resume="auto"), tmp_path)
    assert [(one.step, one.epoch) for one in again.history.evaluations] == [(8, 1), (16, 2)]


def test_failed_write_at_a_stop_is_an_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")

    def at_step(step):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(NotWritten) as error:
        run(replace(CONFIG, checkpoint_dir=blocked), tmp_path / "run", at_step)
    where = f"{blocked} on {socket.gethostname()}"
    assert str(error.value).startswith(
        f"step 2: the checkpoint could not be written to {where}: Not a directory"
    )


def full_at(monkeypatch, *steps):
    """Make the disk full for the checkpoints of these steps, or for all if no step is given."""
    write = storage._write

    def fails(partial, files, saved):
        if not steps or saved.step in steps:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(partial, files, saved)

    monkeypatch.setattr(storage, "_write", fails)


def test_run_without_a_written_checkpoint_ends_with_an_error(tmp_path, monkeypatch):
    full_at(monkeypatch)
    trainer, _ = run(replace(CONFIG, checkpoint_every="epoch"), tmp_path)
    assert trainer.position.step == 16
    with pytest.raises(TrainedButNotSaved) as error:
        trainer.manager.require()
    folder = tmp_path / "checkpoints"
    assert error.value.exit_code == NO_RETRY
    assert str(error.value) == (
        "the training is complete, but step 16: the checkpoint could not be written to "
        f"{folder} on {socket.gethostname()}: the disk is full; there is no earlier checkpoint"
    )


def test_later_checkpoint_replaces_a_failed_one(tmp_path, monkeypatch, capsys):
    full_at(monkeypatch, 8)
    trainer, _ = run(replace(CONFIG, checkpoint_every="epoch"), tmp_path)
    trainer.manager.require()
    assert steps(tmp_path / "checkpoints") == [16]
    assert "step 8: the checkpoint could not be written" in capsys.readouterr().err


def test_failed_best_checkpoint_is_an_error_and_the_previous_best_stays(tmp_path, monkeypatch):
    full_at(monkeypatch, 32)
    config = replace(CONFIG, epochs=4, keep_best="eval_loss", keep_last=1, lr=0.003)
    trainer, _ = run(replace(config, checkpoint_every="8"), tmp_path)
    losses = {one.step: one.metrics["eval_loss"] for one in trainer.history.evaluations}
    assert min(losses, key=losses.__getitem__) == 32  # it is also the last step
    with pytest.raises(TrainedButNotSaved, match="step 32: the checkpoint could not be written to"):
        trainer.manager.require()
    assert steps(tmp_path / "checkpoints") == [24]


def ends_of_disks(ranks, folder):
    """Return how a run ends if each rank writes to its own disk, and the disks of some are full."""
    found = []
    nothing = ObjectStates({}, ranks, writes=True)
    for full in ((), (1,), (0, 1)):
        disk = Path(folder, f"{len(full)}-rank{ranks.rank}")
        checkpoints = CheckpointManager(disk, ranks, firsts=[0, 1], note=lambda record: None)
        with pytest.MonkeyPatch.context() as patching:
            if ranks.rank in full:
                full_at(patching)
            checkpoints.make(3, nothing, StepRequests(save=True))
            try:
                checkpoints.require()
                found.append("")
            except TrainedButNotSaved as error:
                found.append(str(error))
    return found


def test_full_disks_end_every_rank_with_the_error(tmp_path):
    for good, one_is_full, all_are_full in results_of(ends_of_disks, 2, tmp_path, str(tmp_path)):
        assert (good, one_is_full) == ("", "")
        lines = all_are_full.splitlines()
        assert len(lines) == 2
        for rank, line in enumerate(lines):
            assert (
                f"step 3: the checkpoint could not be written to {tmp_path / f'2-rank{rank}'} on "
                in line
            )


@pytest.mark.needs("root", "namespaces")  # to make a small disk
def test_full_checkpoint_disk_fails_the_run_after_its_last_step(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    script = 'mount -t tmpfs -o size=16k none "$1" && shift && exec "$@"'
    worker = [sys.executable, "-m", "train.worker", "--task", "synthetic", "--sync", "single"]
    worker += ["--epochs", "1", "--checkpoint-every", "epoch", "--checkpoint-dir", str(small)]
    worker += ["--logs-dir", str(tmp_path), "--run-id", "run"]
    done = call("unshare", "--mount", "sh", "-c", script, "sh", str(small), *worker, cwd=CHECKOUT)
    assert done.returncode == NO_RETRY, done.stderr
    where = f"{small} on {socket.gethostname()}: the disk is full"
    assert "error: the training is complete, but step 32: " in done.stderr
    assert f" the checkpoint could not be written to {where}" in done.stderr
    end = json.loads((tmp_path / "run" / "exits" / "rank_00000.json").read_text())
    assert (end["code"], end["cause"]) == (NO_RETRY, "refused") and where in end["message"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 32


def test_checkpoint_has_no_losses_of_later_steps(tmp_path, monkeypatch):
    write, later = storage._write, threading.Event()

    def slow(*given):
        later.wait(300)
        write(*given)

    monkeypatch.setattr(storage, "_write", slow)
    config = replace(CONFIG, checkpoint_every="1", keep_last=99, max_steps=4)
    run(config, tmp_path, lambda step: later.set() if step == 3 else None)
    oldest = storage.list_checkpoints(tmp_path / "checkpoints")[-1]
    assert oldest.step == 1
    objects = storage.read_verified(oldest.path).files["objects.pt"]
    assert len(objects["history"]["first_losses"]) == 1
