"""Which GPU a process's own tensors go to; doubles stand for GPUs."""

from types import SimpleNamespace

import pytest
import torch

from train.sync import ranks
from train.sync.ranks import Ranks, own_gpu


@pytest.mark.parametrize(
    ("current", "used", "local_rank", "own"),
    [
        (0, [], "2", 2),  # no set_device, and no model yet
        (0, [2], "2", 2),  # only `model.to("cuda:2")`
        (0, [0, 2], "2", 2),  # with something on the default GPU as well
        (0, [1], "2", 1),  # the script chooses in another way
        (0, [0], "2", 0),  # set_device(0), or one GPU for all
        (3, [], "2", 3),  # set_device(3)
        (0, [], "7", 0),  # each worker sees one GPU
        (0, [], None, 0),
    ],
)
def test_a_script_that_never_calls_set_device_uses_its_own_gpu(
    current, used, local_rank, own, monkeypatch
):
    count = 1 if local_rank == "7" else 4
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda number: 512 * (number in used))
    if local_rank is None:
        monkeypatch.delenv("LOCAL_RANK", raising=False)
    else:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert own_gpu() == torch.device("cuda", own)


def test_group_without_cpu_backend_uses_own_gpu(alone, monkeypatch):
    monkeypatch.setattr(ranks, "backend_of", lambda *_: "")
    monkeypatch.setattr(ranks, "own_gpu", lambda: torch.device("cuda", 5))
    assert Ranks().device == torch.device("cuda", 5)


def test_tensors_of_a_group_that_was_given_its_gpu_lie_there(alone, monkeypatch):
    monkeypatch.setattr(ranks, "backend_of", lambda *_: "")
    bound = SimpleNamespace(bound_device_id=torch.device("cuda", 6))
    assert Ranks(group=bound).device == torch.device("cuda", 6)
