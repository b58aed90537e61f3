"""Except when saving, no rank has the whole model (fsdp) or optimizer state (zero1, fsdp)."""

import ctypes
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from muster.errors import UsageError
from tests.train.memory import peak
from tests.train.retained import CONFIG, run
from tests.train.workers import results_of
from train.checkpoints.manager import CheckpointManager
from train.checkpoints.object_states import ObjectStates
from train.checkpoints.synced_objects import SyncedModel
from train.loop.trainer import Trainer
from train.sync.base import SyncOptions
from train.sync.modes.fsdp import Fsdp
from train.sync.ranks import Ranks
from train.tasks import synthetic

WIDTH = 1024
LAYERS = 8
LAYER_BYTES = 4 * WIDTH**2
MODEL_BYTES = LAYERS * LAYER_BYTES  # 32 MiB
FEW_LAYERS = 4 * LAYER_BYTES  # what may be gathered at a time, including its buffers
STATE_BYTES = MODEL_BYTES  # AdamW's state on each of two ranks: half of two means
PARTS_OF_A_RUN = (
    (Fsdp, "wrap"),
    (Trainer, "_evaluate"),
    (CheckpointManager, "make"),
    (ObjectStates, "load"),
)
M_MMAP_THRESHOLD = -3  # of the C library's mallopt


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        hidden = self.first(points)
        for layer in self.layers:
            hidden = layer(hidden).tanh()
        return self.last(hidden)


class Deep(synthetic.Synthetic):
    def build_model(self) -> nn.Module:
        return Layers()


def growths(ranks: Ranks, mode: str, folder: str) -> dict[str, Any]:
    """Return how many more bytes each part of a run needed than were held before it."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)  # freed memory goes back to the system
    config = replace(
        CONFIG, sync=mode, max_steps=2, batch_size=8, evaluate="end", checkpoint_every="1",
        eval_samples=9, eval_batch_size=4,
    )  # fmt: skip
    results: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patching:
        for owner, name in PARTS_OF_A_RUN:
            patching.setattr(owner, name, measured(getattr(owner, name), name, results))
        task = Deep(config)
        trainer, _ = run(config, Path(folder, mode), task=task, ranks=ranks)
        again = replace(config, resume=str(Path(folder, mode)), max_steps=3)
        run(again, Path(folder, f"{mode}-again{ranks.rank}"), task=task, ranks=ranks)
    results["metrics"] = trainer.history.evaluations[-1].metrics
    if mode == "fsdp":
        results |= saved_whole(trainer)
    return results


def saved_whole(trainer: Trainer) -> dict[str, Any]:
    """Return what rank 0 can save, and how much memory that takes on this rank."""
    model = trainer.state.model
    split = dict(model.named_parameters())
    with peak() as most, trainer.grad_sync.full_parameters(model):
        values = {} if trainer.ranks.rank else {**model.state_dict()}
        kind = type(model).__name__
    assert dict(model.named_parameters()) == split
    gathered = {
        name: tensor.clone() for name, tensor in SyncedModel(model, trainer.grad_sync).collected()
    }
    is_same = all(torch.equal(values[name], tensor) for name, tensor in gathered.items() if values)
    return {"whole": most[0], "saved": list(values), "kind": kind, "is_same": is_same}


def measured(call: Callable[..., Any], name: str, results: dict[str, int]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with peak() as most:
            result = call(*args, **kwargs)
        results[name] = max(most[0], results.get(name, 0))
        return result

    return wrapper


@pytest.fixture(scope="module")
def results_by_mode(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Return the results of each mode on two ranks."""
    return {
        mode: results_of(growths, 2, (folder := tmp_path_factory.mktemp(mode)), mode, str(folder))
        for mode in ("fsdp", "zero1")
    }


@pytest.mark.slow
def test_fsdp_splits_the_model_in_the_memory_of_a_few_layers(results_by_mode):
    assert max(rank["wrap"] for rank in results_by_mode["fsdp"]) < FEW_LAYERS


@pytest.mark.slow
def test_evaluation_with_fsdp_gathers_a_few_layers_at_a_time(results_by_mode):
    assert max(rank["_evaluate"] for rank in results_by_mode["fsdp"]) < FEW_LAYERS


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fsdp", "zero1"])
def test_non_writing_rank_gathers_one_parameter_at_a_time(results_by_mode, mode):
    assert results_by_mode[mode][1]["make"] < 2 * FEW_LAYERS  # of 8 layers, with two means each


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fsdp", "zero1"])
def test_resume_reads_one_parameter_at_a_time(results_by_mode, mode):
    assert max(rank["load"] for rank in results_by_mode[mode]) < STATE_BYTES + FEW_LAYERS


@pytest.mark.slow
def test_fsdp_gives_the_whole_model_to_rank_0_alone(results_by_mode):
    first, second = results_by_mode["fsdp"]
    assert second["whole"] < FEW_LAYERS
    assert (first["kind"], first["saved"], first["is_same"]) == (
        "Layers",
        [*Layers().state_dict()],
        True,
    )
    assert second["saved"] == []


@pytest.mark.slow
def test_evaluation_with_fewer_batches_on_a_rank_counts_each_sample_once(results_by_mode):
    """With nine samples in batches of four, rank 0 has two batches and rank 1 has one."""
    metrics = results_by_mode["fsdp"][0]["metrics"]
    assert metrics == pytest.approx(results_by_mode["zero1"][0]["metrics"], abs=1e-6)
    assert metrics == results_by_mode["fsdp"][1]["metrics"]


def test_fsdp_refuses_a_scalar_parameter_by_name(alone):
    model = nn.Linear(3, 3)
    model.scale = nn.Parameter(torch.ones(()))
    reason = "support scalar parameters. Change scale to a 1D"
    with pytest.raises(UsageError, match=rf"fsdp .*{reason}.*; use zero1"):
        Fsdp(Ranks(), SyncOptions()).wrap(model)


def test_fsdp_splits_tied_frozen_and_uncopyable_parts_in_place(alone):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    model.lock = threading.Lock()  # it cannot be copied
    mode = Fsdp(Ranks(), SyncOptions())
    assert mode.wrap(model) is model
    assert model[0].weight is model[1].weight
    model(torch.randn(4, 3)).square().sum().backward()
    used = mode.used(model)
    assert used == [name != "0.bias" for name, _ in model.named_parameters()]
    mode.sync(model, used)
    assert [param.grad is not None for param in model.parameters()] == used
