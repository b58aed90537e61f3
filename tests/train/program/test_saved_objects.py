"""Objects with a `state_dict` are restored bit for bit; values that cannot be saved are refused."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

import muster
from tests.train.workers import run_program
from train.program.exchange import ProgramRequests


class Own(dict):
    """An object whose state is its items."""

    def state_dict(self):
        return dict(self)

    load_state_dict = dict.update


STATE = {
    "a": torch.tensor([1.5, -0.0, float("nan")], dtype=torch.bfloat16),
    7: {"tuple": (1, [True, None, "text"], 2.5), "empty": {}, "nothing": []},
    "scalar": torch.tensor(3),
    "infinite": float("-inf"),
    "numpy": [np.float64(0.1), np.float32(0.1), np.int8(-3), np.bool_(True)],
    "big": 2**70,
    False: 0.1 + 0.2,
    "view": torch.arange(6).view(2, 3).T,
    "complex": {
        str(one): torch.tensor([1 + 2j], dtype=one) for one in (torch.cfloat, torch.cdouble)
    },
    "conjugate": torch.tensor([[1 + 2j, -0.5j]], dtype=torch.complex128).mH,
    "negative": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
}


def exact(value):
    """Return `value` in a form that is equal only for the same types and bits."""
    if isinstance(value, torch.Tensor):
        raw = value.resolve_conj().resolve_neg().flatten().clone().view(torch.uint8)
        return value.dtype, value.shape, raw.tolist()
    if isinstance(value, dict):
        return [(exact(key), exact(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [exact(one) for one in value]
    return type(value), value


def test_resumed_state_has_its_types(tmp_path):
    with muster.checkpoints(tmp_path, own=Own(STATE), other=Own({"b": 1})) as first:
        assert first.resume() == 0
        first.save(3)
    again, other = Own(), Own()
    assert muster.checkpoints(tmp_path, own=again, other=other).resume() == 3
    plain = [0.1, float(np.float32(0.1)), -3, True]
    assert exact(again) == exact({**STATE, "numpy": plain}) and other == {"b": 1}
    names = {path.suffix for path in (tmp_path / "step_00000003").iterdir()}
    assert names == {".pt", ".json"}


def trained(folder, stop=None):
    """Resume a training with dropout, momentum and a schedule; return its first step and losses."""
    torch.manual_seed(0)
    model = muster.sync(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)), "single")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=20)
    plan = muster.steps(20, batch_size=5, epochs=3, seed=1)
    data, losses = torch.randn(20, 4, generator=torch.Generator().manual_seed(2)), []
    with muster.checkpoints(
        folder, every="2 steps", model=model, optimizer=optimizer, schedule=schedule, steps=plan
    ) as checkpoints:
        begun = checkpoints.resume()
        for step in plan:
            loss = model(data[list(step.micro_batches[0].indices)]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            losses.append(loss.item())
            checkpoints.after_step(step.step)
            if step.step == stop:
                break
    return begun, losses


def test_training_resumes_bit_for_bit(tmp_path):
    _, whole = trained(tmp_path / "whole")
    trained(tmp_path / "two", stop=7)
    begun, rest = trained(tmp_path / "two")
    assert begun in (2, 4, 6)  # one that is due while another is being written is skipped
    assert rest == whole[begun:]


def test_recorded_step_has_one_small_collective(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_RUN_DIR", str(tmp_path / "run"))
    recorder, rows = sys.modules[muster.record.__module__], []
    saved_objects = sys.modules[muster.checkpoints.__module__]
    monkeypatch.setattr(recorder, "program_requests", ProgramRequests())  # not from another test
    monkeypatch.setattr(saved_objects, "program_requests", recorder.program_requests)
    ranks = recorder.Ranks
    gather = ranks.all_gather
    monkeypatch.setattr(ranks, "all_gather", lambda own, row: rows.append(row) or gather(own, row))
    checkpoints = muster.checkpoints(tmp_path / "saved", every="4 steps", own=Own({"a": 1}))
    rows.clear()
    for step in (1, 2, 3):
        assert muster.record(step, loss=step) == step
        checkpoints.after_step(step)
    assert [row.tolist() for row in rows] == [
        [1, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1, 0], [2, 0, 0, 0, 0, 2, 1], [3, 0, 0, 0, 0, 3, 1],
    ]  # fmt: skip
    with checkpoints:
        checkpoints.after_step(4)  # before its record, or without one
        muster.record(4, loss=0.5)
    assert muster.checkpoints(tmp_path / "saved", own=Own()).resume() == 4


STOPPED_ON_ONE_RANK = """
import os, signal, torch, muster
with muster.init(device="cpu") as run:
    model = muster.sync(torch.nn.Linear(2, 1))
    with muster.checkpoints(model=model) as checkpoints:
        begun = checkpoints.resume()
        for step in range(begun + 1, 9):
            if run.rank == 1 and step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            muster.record(step, loss=float(run.rank))
            checkpoints.after_step(step)
    print(begun, step)
"""


def test_stop_request_of_one_rank_stops_all_with_the_loss(tmp_path):
    for codes, printed in (([75, 75], ""), ([0, 0], "3 8\n")):
        run_dir = str(tmp_path / "run")
        ended = run_program(tmp_path, STOPPED_ON_ONE_RANK, 2, MUSTER_RUN_DIR=run_dir)
        assert [code for code, *_ in ended] == codes, [err[-2000:] for *_, err in ended]
        assert [out for _, out, _ in ended] == [printed, printed]


AT_DIFFERENT_STEPS = """
import torch, muster
with muster.init(device="cpu") as run:
    checkpoints = muster.checkpoints(model=torch.nn.Linear(2, 1))
    for call in (lambda step: muster.record(step, loss=1.0), checkpoints.after_step,
                 checkpoints.save):
        try:
            call(3 + run.rank)
        except muster.UsageError as error:
            print(str(error).partition(";")[0])
"""


def test_ranks_at_different_steps_are_named_on_every_rank(tmp_path):
    ended = run_program(tmp_path, AT_DIFFERENT_STEPS, 2, MUSTER_RUN_DIR=str(tmp_path / "run"))
    line = "rank 0 is at step 3, rank 1 at step 4\n"
    assert [out for _, out, _ in ended] == [3 * line] * 2, [err[-2000:] for *_, err in ended]


DRIFTED = """
import torch, muster
with muster.init(device="cpu") as run:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    model[1].requires_grad_(False)
    synced = muster.sync(model, broadcast_buffers=False)
    with muster.checkpoints("saved", model=synced) as checkpoints:
        checkpoints.save(1)  # the replicas are still equal
        model[1].requires_grad_(True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in (2, 3):
            predicted = synced(torch.eye(4, 2) + run.rank * torch.ones(4, 2).tril(-2))
            (predicted - run.rank).square().sum().backward()
            optimizer.step()
            checkpoints.save(step)
"""


def test_parameters_that_differ_by_rank_are_named_once(tmp_path):
    ended = run_program(tmp_path, DRIFTED, 2, MUSTER_RUN_DIR=str(tmp_path / "run"))
    assert [code for code, *_ in ended] == [0, 0], [err[-2000:] for *_, err in ended]
    lines = [[line for line in err.splitlines() if "differs" in line] for *_, err in ended]
    assert [len(of_rank) for of_rank in lines] == [1, 0]
    assert (
        "warning: muster.checkpoints: model differs between ranks: module.0.running_mean, "
        "module.0.running_var, module.1.weight, module.1.bias; each rank's state is saved"
    ) in lines[0][0]
    assert lines[0][0].endswith(
        'declare model: muster.checkpoints(..., by_rank={"model": model}). DDP does not '
        "synchronise parameters that are frozen when it wraps the model; set "
        "requires_grad before wrapping it"
    )


COLLECTED_ON_ONE_RANK = """
import gc, torch, muster
with muster.init(device="cpu") as run:
    for fold in range(2):
        model = muster.sync(torch.nn.Linear(2, 1))
        checkpoints = muster.checkpoints(f"fold-{fold}", model=model)
        for step in range(1, 4):
            print(muster.record(step, loss=float(run.rank)))
            checkpoints.after_step(step)
        if run.rank == 0:
            held = checkpoints
        del checkpoints
        gc.collect()
"""


def test_checkpoints_deleted_on_one_rank_do_not_break_record(tmp_path):
    run_dir = str(tmp_path / "run")
    ended = run_program(tmp_path, COLLECTED_ON_ONE_RANK, 2, MUSTER_RUN_DIR=run_dir)
    assert [code for code, *_ in ended] == [0, 0], [err[-2000:] for *_, err in ended]
    assert [out.split() for _, out, _ in ended] == [["0.5"] * 6] * 2


def test_checkpoint_that_does_not_fit_is_refused_with_its_folder(tmp_path):
    muster.checkpoints(tmp_path, model=nn.Sequential(nn.Linear(2, 1))).save(3)
    with pytest.raises(muster.UsageError) as refusal:
        muster.checkpoints(tmp_path, model=nn.Linear(2, 1)).resume()
    assert str(refusal.value).startswith(f"muster.checkpoints: step 3 in {tmp_path}: model ")
    assert "Error(s) in loading" in str(refusal.value)
    assert 'Missing key(s) in state_dict: "weight", "bias"' in str(refusal.value)


def test_program_without_last_checkpoint_on_disk_ends_with_error(tmp_path, capsys):
    folder = tmp_path / "saved"
    with (
        pytest.raises(
            muster.MusterError,
            match=r"step 1: the checkpoint could not be written to .*/saved on .*: Not a d",
        ),
        muster.checkpoints(folder, every="1 steps", own=Own()) as checkpoints,
    ):
        folder.rmdir()
        folder.touch()
        checkpoints.after_step(1)
    with pytest.raises(KeyError), checkpoints:  # the program's own error has priority
        raise KeyError
    folder.unlink()
    with checkpoints:
        checkpoints.after_step(2)
    assert "warning: step 1: the checkpoint could not be written to" in capsys.readouterr().err


def test_second_training_in_the_default_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_CHECKPOINTS", str(tmp_path))
    with muster.checkpoints(own=Own({"a": 1})) as first:
        first.save(1)
    with pytest.raises(muster.UsageError, match="name='fold2'"):
        muster.checkpoints(own=Own())


def test_trainings_with_names_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_CHECKPOINTS", str(tmp_path))
    for fold in (1, 2):
        with muster.checkpoints(name=f"fold{fold}", own=Own({"a": fold})) as checkpoints:
            assert checkpoints.resume() == 0
            checkpoints.save(fold)
            assert checkpoints.folder == tmp_path / f"fold{fold}"
    with pytest.raises(muster.UsageError, match="fold2"):
        muster.checkpoints(name="fold2", own=Own())
    again = Own()
    assert muster.checkpoints(tmp_path, name="fold1", own=again).resume() == 1
    assert again == {"a": 1}


def test_second_training_in_a_given_folder_is_warned(tmp_path, capsys):
    """As in a loop over folds, where each fold would resume from the one before."""
    for start, words in ((0, ""), (5, f"resuming from step 5 in {tmp_path}, ")):
        with muster.checkpoints(tmp_path, own=Own({"a": 1})) as checkpoints:
            assert checkpoints.resume() == start
            assert words in capsys.readouterr().err
            checkpoints.save(5)


@pytest.mark.parametrize("method", ["after_step", "save"])
def test_program_that_does_not_resume_is_refused_in_the_folder_of_another_run(
    tmp_path, monkeypatch, method
):
    for run_id in ("first", "first", "second", None):
        monkeypatch.setenv("MUSTER_RUN_DIR", f"logs/{run_id}")
        if run_id is None:
            monkeypatch.delenv("MUSTER_RUN_DIR")
        checkpoints = muster.checkpoints(tmp_path / "saved", own=Own({"a": 1}))
        if run_id == "first":
            checkpoints.save(2)
            continue
        with pytest.raises(muster.UsageError) as error:
            getattr(checkpoints, method)(1)
        assert str(error.value) == (
            f"muster.checkpoints: {tmp_path / 'saved'} contains checkpoints from another run, "
            "for example from step 2; to continue from them, call resume() before the first step; "
            "otherwise choose another folder"
        )
    assert checkpoints.resume() == 2


def test_checkpoints_without_a_folder_are_refused(monkeypatch):
    monkeypatch.delenv("MUSTER_CHECKPOINTS", raising=False)
    with pytest.raises(muster.UsageError, match="MUSTER_CHECKPOINTS"):
        muster.checkpoints(own=Own())


def test_checkpoints_below_a_file_are_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(muster.UsageError, match="file/below: Not a directory"):
        muster.checkpoints(tmp_path / "file" / "below", own=Own())


def test_damaged_checkpoint_is_skipped_with_a_warning(tmp_path, capsys):
    saved = muster.checkpoints(tmp_path, own=Own({"a": torch.ones(1)}))
    saved.save(1)
    saved.save(2)
    damaged = tmp_path / "step_00000002" / "objects.pt"
    damaged.write_bytes(b"")
    assert muster.checkpoints(tmp_path, own=Own()).resume() == 1
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith(f"warning: muster.checkpoints: {damaged} is damaged: ")


def test_resumed_tensor_does_not_change_with_the_file_it_came_from(tmp_path):
    muster.checkpoints(tmp_path, own=Own({"a": torch.ones(5000)})).save(1)
    again = Own()
    muster.checkpoints(tmp_path, own=again).resume()
    file = tmp_path / "step_00000001" / "objects.pt"
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.write(bytes(size))
    assert again["a"].eq(1).all()
