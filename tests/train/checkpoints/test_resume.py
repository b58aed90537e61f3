"""A run that is resumed from a checkpoint equals an uninterrupted run, bit for bit.

On another number of ranks, it is equal up to rounding.
"""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import muster
from configs import plugins
from muster.errors import UsageError
from tests.train.retained import CONFIG, CUT, Uncommon, bits, losses, results, run, train
from tests.train.workers import results_of
from train.checkpoints import storage
from train.tasks import synthetic

NAMES = [mode for mode in plugins.names("train.sync.modes") if mode != "single"]
# The other modes are changed by making a checkpoint; their own tests compare equal checkpoints.
MODES = [mode for mode in NAMES if plugins.load("train.sync.modes", mode).is_exact]
# In the first mode, each rank has the whole model; in the second, a part of it.
TWO_KINDS = ["all_reduce", "fsdp"]
SPLITS = {2: "3,1", 3: "3,0,2"}


def resume_in_modes(ranks, folder, *modes):
    """Resume in each mode; each rank has its own disk, and only rank 0's has checkpoints.

    If `folder` has the losses of another number of ranks, also resume from their checkpoints: from
    those of the same mode and of the next mode.
    """
    after = dict(zip(modes, (*modes[1:], modes[0]), strict=True))
    base = replace(CONFIG, accumulation=2, split=SPLITS[ranks.world_size], warmup_steps=0)
    for mode in modes:
        config = replace(base, sync=mode)
        disk = Path(folder, f"{mode}-{ranks.world_size}", f"disk{ranks.rank}")
        whole = train(ranks, config, disk / "whole")
        cut = replace(config, max_steps=CUT, checkpoint_every=str(CUT))
        train(ranks, cut, disk / "cut")
        resumed = train(ranks, config, disk / "again", disk / "cut" / "checkpoints")
        assert bits(resumed) == bits(whole), f"{mode}: not the same bits"
        assert losses(resumed.history) == losses(whole.history)[CUT:], (
            f"{mode}: not the same losses"
        )

        plain = replace(config, dropout=0.0)  # dropout differs between numbers of ranks
        reference = Path(folder, f"{mode}.pt")
        if not reference.exists():
            whole = train(ranks, plain, disk / "plain")
            train(ranks, replace(cut, dropout=0.0), disk / "plain-cut")
            if ranks.rank == 0:
                torch.save(losses(whole.history), reference)
            continue
        for made_by in (mode, after[mode]):
            (other,) = Path(folder).glob(
                f"{made_by}-[!{ranks.world_size}]/disk0/plain-cut/checkpoints"
            )
            resumed = train(ranks, plain, disk / made_by, other)
            wanted = torch.load(reference, weights_only=True)[CUT:]
            pairs = zip(losses(resumed.history), wanted, strict=True)
            gap = max(abs(loss - expected) for loss, expected in pairs)
            case = f"{mode}, from {made_by}'s checkpoint of other ranks"
            assert gap < 1e-6, f"{case}: losses differ by {gap}"


@pytest.mark.parametrize(
    "modes",
    [
        pytest.param(TWO_KINDS, id="two kinds"),
        pytest.param(MODES, marks=pytest.mark.slow, id="all"),
    ],
)
def test_mode_resumes_also_on_another_number_of_ranks(tmp_path, modes):
    for ranks in (3, 2):
        results_of(resume_in_modes, ranks, tmp_path, str(tmp_path), *modes)


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [("adamw", ""), ("adam", ""), ("adadelta", ""), ("sgd", ""),
     ("adamw", "tied"), ("adamw", "frozen"), ("adamw", "adapted")],
)  # fmt: skip
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, optimizer, kind):
    config = replace(CONFIG, optimizer=optimizer, weight_decay=0.1)

    def trained(folder, **more):
        own = replace(config, **more)
        return run(own, tmp_path / folder, task=Uncommon(own, kind) if kind else None)

    whole, _ = trained("whole")
    for cut in (3, 8, 11):
        folder = tmp_path / f"cut_{cut}"
        trained(folder, max_steps=cut, checkpoint_every="1")
        again, lines = trained(f"again_{cut}", resume=str(folder))
        assert lines[0] == f"resuming from step {cut} ({folder})"
        assert results(again) == {step: one for step, one in results(whole).items() if step > cut}
        assert bits(again) == bits(whole)
        both = (again.history, whole.history)
        first, second = ([(e.step, e.epoch, e.metrics) for e in one.evaluations] for one in both)
        assert first == second and both[0].first_losses == both[1].first_losses


def test_damaged_checkpoint_is_skipped(tmp_path):
    run(replace(CONFIG, max_steps=6, checkpoint_every="3"), tmp_path / "cut")
    path = tmp_path / "cut" / "checkpoints" / "step_00000006" / "objects.pt"
    os.truncate(path, 99)
    for place in (tmp_path / "cut", path.parent):
        again, lines = run(replace(CONFIG, resume=str(place)), tmp_path / place.name / "again")
        assert "is damaged" in lines[0]
        assert min(results(again)) == 4
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step_00000003")
    with pytest.raises(UsageError, match="no intact checkpoint"):
        run(replace(CONFIG, resume=str(tmp_path / "cut")), tmp_path / "again")


class Counter:
    """An object of a program whose state is not a model's."""

    def state_dict(self):
        return {"0.weight": 3}

    def load_state_dict(self, state):
        pass


def cut_after_two(folder):
    run(replace(CONFIG, max_steps=2, checkpoint_every="2"), folder)


def program_states(**objects):
    return lambda folder: muster.checkpoints(folder, **objects).save(3)


LINEAR = torch.nn.Linear(2, 1)
# A function that writes a folder, the settings of the run that resumes from it, and the error.
REFUSED = [
    (Path.mkdir, {}, "--resume {folder}: no checkpoint in"),
    (cut_after_two, {"batch_size": 128},
     "--batch-size is 128, but was 256 in the checkpoint; use 256, or"),
    (cut_after_two, {"seed": 1}, "--seed is 1, but was 42"),
    (cut_after_two, {"lr": 0.5},
     "--lr is 0.5, but was 0.01 in the checkpoint; use 0.01, or add --reset-lr-sch"),
    (cut_after_two, {"optimizer": "sgd"}, "--optimizer is sgd, but was adamw in the checkpoint"),
    (cut_after_two, {"decay": "all"},
     "--decay is all, but was matrices in the checkpoint; use matrices, or"),
    (cut_after_two, {"precision": "fp64"}, "in torch.float64; "),
    (program_states(model=LINEAR), {}, "it contains model, but this program has hist"),
    # programs with objects of their own that have the names of ours
    (program_states(model=Counter()), {}, "it contains model, but this program has hist"),
    (program_states(settings=Counter()), {}, "it contains settings, but this program has hist"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "change", "message"), REFUSED)
def test_resume_that_does_not_fit_is_refused(tmp_path, written, change, message):
    folder = tmp_path / "cut"
    written(folder)
    with pytest.raises(UsageError) as error:
        run(replace(CONFIG, resume=str(folder), **change), tmp_path / "again")
    assert message.format(folder=folder) in str(error.value)


def test_resume_names_changed_settings(tmp_path):
    before = replace(CONFIG, weight_decay=0.1, max_steps=2, checkpoint_every="2")
    run(before, tmp_path / "cut")
    again = replace(CONFIG, resume=str(tmp_path / "cut"), max_steps=3)
    _, lines = run(replace(again, weight_decay=0.1, length_balance=False), tmp_path / "same")
    assert not any("settings changed" in line for line in lines)
    others = replace(again, dropout=0.5, adam_beta1=0.8, reset_data=True, batch_size=64)
    _, lines = run(others, tmp_path / "other")
    (line,) = (line for line in lines if "settings changed" in line)
    assert line.endswith(
        ": --dropout unset → 0.5, --weight-decay 0.1 → 0.0, --adam-beta1 0.9 → 0.8, "
        "--batch-size 256 → 64"
    )


class Wider(synthetic.Synthetic):
    def build_model(self):
        return torch.nn.Sequential(torch.nn.Linear(8, 9), torch.nn.Linear(9, 2))


def test_resume_names_all_problems_at_once(tmp_path):
    before = replace(CONFIG, epochs=1, schedule_steps=16, keep_best="accuracy")
    run(before, tmp_path / "cut")
    again = replace(CONFIG, resume=str(tmp_path / "cut"), lr=0.5, schedule_steps=32, seed=1)
    again = replace(again, keep_best="eval_loss", train_samples=512)
    with pytest.raises(UsageError) as error:
        run(again, tmp_path / "again", task=Wider(again))
    for fault in (
        "--lr is 0.5, but was 0.01",
        "--seed is 1, but was 42",
        "512 samples, but had 2048",
        "--reset-data",
        "its 0.weight is ",
        "decays until step 16",
        "--keep-best is eval_loss:min",
    ):
        assert fault in str(error.value)
    assert str(error.value).startswith(f"--resume {tmp_path / 'cut'}: ")


@pytest.mark.parametrize(("before", "after"), [("fp32", "fp16"), ("fp16", "fp32")])
def test_checkpoint_of_a_precision_without_a_loss_scale_is_continued(tmp_path, before, after):
    cut = replace(CONFIG, precision=before, max_steps=2, checkpoint_every="2")
    run(cut, tmp_path / "cut")
    again = replace(CONFIG, precision=after, max_steps=3, resume=str(tmp_path / "cut"))
    trainer, _ = run(again, tmp_path / "again")
    assert min(results(trainer)) == 3


def test_checkpoint_of_version_0_2_0_is_refused_by_name(tmp_path):
    run(replace(CONFIG, max_steps=2, checkpoint_every="2"), tmp_path / "cut")
    path = tmp_path / "cut" / "checkpoints" / "step_00000002"
    manifest = path / storage.MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 2}))
    _, (note,) = storage.newest_intact(tmp_path / "cut")
    assert note.startswith(f"{path} was written by Muster 0.2.0")
    with pytest.raises(UsageError, match="no intact checkpoint"):
        run(replace(CONFIG, resume=str(tmp_path / "cut")), tmp_path / "again")


def test_resume_with_another_schedule_end_is_refused(tmp_path):
    """The learning rate of the next step would jump."""
    run(replace(CONFIG, max_steps=8, checkpoint_every="8"), tmp_path / "cut")
    longer = replace(CONFIG, resume=str(tmp_path / "cut"), epochs=4)
    with pytest.raises(UsageError) as error:
        run(longer, tmp_path / "again")
    assert "until step 16, " in str(error.value) and "until step 32" in str(error.value)
    assert "--schedule-steps 16, or --reset-lr-scheduler" in str(error.value)
    whole, _ = run(CONFIG, tmp_path / "whole")
    same, _ = run(replace(longer, schedule_steps=16, max_steps=12), tmp_path / "same")
    assert results(same) == {step: one for step, one in results(whole).items() if 8 < step <= 12}
    run(replace(longer, reset_lr_scheduler=True), tmp_path / "reset")
    steady = replace(CONFIG, schedule="constant")
    run(replace(steady, max_steps=8, checkpoint_every="8"), tmp_path / "steady")
    run(replace(steady, resume=str(tmp_path / "steady"), epochs=3), tmp_path / "steadier")


def test_resume_with_another_model_is_refused(tmp_path):
    run(replace(CONFIG, max_steps=2, checkpoint_every="2"), tmp_path / "cut")
    with pytest.raises(UsageError, match=r"its 1\.bias is missing, but this model's is \("):
        run(replace(CONFIG, resume=str(tmp_path / "cut")), tmp_path / "b", task=Wider(CONFIG))


def test_reset_flags_discard_parts_of_a_checkpoint(tmp_path):
    run(replace(CONFIG, max_steps=11, checkpoint_every="11"), tmp_path / "cut")
    base = replace(CONFIG, resume=str(tmp_path / "cut"))

    fresh, _ = run(replace(base, reset_lr_scheduler=True), tmp_path / "lr")
    assert fresh.history.steps[0].lr == 0.0 and results(fresh)[12][1] == 0.0  # warm-up again
    fresh, _ = run(replace(base, reset_optimizer=True, optimizer="sgd"), tmp_path / "optimizer")
    assert min(results(fresh)) == 12
    fresh, _ = run(replace(base, reset_data=True, batch_size=512), tmp_path / "data")
    assert sorted(results(fresh)) == list(range(12, 20))  # two epochs of four steps, after step 11
    assert [one.epoch for one in fresh.history.steps] == [1] * 4 + [2] * 4
