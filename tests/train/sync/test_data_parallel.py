"""`muster.sync(model)` is `DistributedDataParallel(model)`: the same numbers, or the same error."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import muster
from tests.train.sync import data_parallel_worker as worker
from tests.train.workers import run_on_ranks


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Return the differences on each rank; the worker itself checks everything else."""
    folder: Path = tmp_path_factory.mktemp("found")
    run_on_ranks(worker.__file__, 2, str(folder))
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("mode", [*worker.MODES, "comes to something"])
@pytest.mark.parametrize("name", worker.LOOPS)
def test_muster_sync_in_a_loop_equals_ddp(name, mode, differences):
    assert [rank[f"{name} {mode}"] for rank in differences] == ["", ""]


@pytest.mark.skipif(not worker.HAS_ACCELERATE, reason="Accelerate is not installed")
@pytest.mark.parametrize("name", worker.OF_FRAMEWORKS)
def test_muster_sync_in_a_framework_equals_ddp(name, differences):
    assert [rank[f"{name} sync_ddp"] for rank in differences] == ["", ""]


def test_a_process_alone_needs_no_group():
    for model in (muster.sync(nn.Linear(3, 1)), muster.sync(nn.Linear(3, 1), "single")):
        with model.no_sync():
            model(torch.ones(2, 3)).sum().backward()
        assert torch.equal(model.module.weight.grad, torch.full((1, 3), 2.0))
        assert list(model.state_dict()) == ["module.weight", "module.bias"]
        assert torch.equal(pickle.loads(pickle.dumps(model)).module.weight, model.module.weight)
