"""The trainer trains with the functions that programs import: one that breaks, breaks both."""

import ast
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import muster
from muster import orderly_stop
from muster.checkout import CHECKOUT
from muster.orderly_stop import StopRequest
from tests.train import retained
from train.batches.splitter import Pace, Splitter
from train.batches.steps import Steps
from train.checkpoints.manager import CheckpointManager
from train.checkpoints.object_states import ObjectStates
from train.program import exchange
from train.program.recorder import Recorder
from train.sync.step_times import StepTimer

pytestmark = pytest.mark.slow

SAVED_STEP = 1
CONFIG = replace(retained.CONFIG, split="auto", checkpoint_every="1", evaluate="never")
SHARED = [
    (Steps, "segment"),
    (Steps, "coming"),
    (Steps, "end_epoch"),
    (StepTimer, "end_step"),
    (Pace, "add"),
    (Splitter, "better"),
    (exchange.Shared, "__init__"),
    (Recorder, "stepped"),
    (StopRequest, "_begin"),
    (CheckpointManager, "requests"),
    (CheckpointManager, "make"),
    (CheckpointManager, "resume"),
    (ObjectStates, "saved"),
    (ObjectStates, "load"),
]
ONCE = {owner.__name__ for owner, _ in SHARED} | {
    "Position", "SavedState", "StepRequests", "StoppedCleanly", "exchange", "timer_of"
}  # fmt: skip


class Broken(Exception):
    """What a shared function raises here."""


def by_trainer(folder: Path, most: int | None = None) -> None:
    """Resumes if there is a checkpoint."""
    source = folder / "trainer" / "checkpoints"
    resume = str(source) if source.exists() or most is None else None
    retained.run(replace(CONFIG, max_steps=most, resume=resume), folder / "trainer")


def by_program(folder: Path, most: int | None = None) -> None:
    """A user's own loop, which resumes if there is a checkpoint."""
    torch.manual_seed(0)
    model = muster.sync(nn.Linear(3, 1), "single")
    optimizer = torch.optim.AdamW(model.parameters())
    steps = muster.steps(2048, batch_size=256, split="auto", model=model)
    with muster.checkpoints(
        folder / "program", every="1 steps", model=model, optimizer=optimizer, steps=steps
    ) as checkpoints:
        checkpoints.resume()
        for step in steps:
            loss = model(torch.ones(step.local_samples, 3)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            muster.record(step, loss=loss, model=model)
            checkpoints.after_step(step.step)
            if step.step == most:
                break


@pytest.fixture
def training(request, tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(orderly_stop, "request", StopRequest())
    before = signal.getsignal(signal.SIGTERM)
    yield lambda most=None: request.param(tmp_path, most)
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("training", [by_trainer, by_program], indirect=True)
@pytest.mark.parametrize(("owner", "name"), SHARED)
def test_broken_function_of_the_library_breaks_trainer_and_program(
    training, monkeypatch, owner, name
):
    def broken(*given, **options):
        raise Broken(name)

    training(SAVED_STEP)
    monkeypatch.setattr(orderly_stop, "request", StopRequest())  # as in a new process
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Broken, match=name):
        training()


def test_shared_functions_are_defined_once():
    places: dict[str, list[str]] = {name: [] for name in ONCE}
    for folder in ("muster", "train"):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in places:
                    places[node.name].append(str(path.relative_to(CHECKOUT)))
    assert {name: files for name, files in places.items() if len(files) != 1} == {}
