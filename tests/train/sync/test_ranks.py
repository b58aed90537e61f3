"""Which GPU a process's own tensors go to; test doubles replace the GPUs."""

from types import SimpleNamespace

import pytest
import torch

from muster.errors import UsageError
from train.sync import ranks
from train.sync.ranks import Ranks, chosen_gpu


@pytest.mark.parametrize(
    ("current", "gpus", "local_rank"),
    [(0, 4, "0"), (0, 4, None), (3, 4, "3"), (1, 4, "2"), (0, 1, "7")],
)
def test_the_chosen_gpu_is_used(current, gpus, local_rank, monkeypatch):
    """The last case is a worker that sees only one GPU."""
    stand_in(monkeypatch, current, gpus, local_rank)
    assert chosen_gpu() == torch.device("cuda", current)


def test_rank_that_has_chosen_none_of_several_gpus_is_refused(monkeypatch):
    stand_in(monkeypatch, current=0, gpus=4, local_rank="2")
    with pytest.raises(UsageError, match=r"LOCAL_RANK is 2, .* of 4; .*set_device"):
        chosen_gpu()


def stand_in(monkeypatch, current, gpus, local_rank):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if local_rank is None:
        monkeypatch.delenv("LOCAL_RANK", raising=False)
    else:
        monkeypatch.setenv("LOCAL_RANK", local_rank)


def test_group_without_cpu_backend_uses_the_chosen_gpu(alone, monkeypatch):
    monkeypatch.setattr(ranks, "backend_of", lambda *_: "")
    monkeypatch.setattr(ranks, "chosen_gpu", lambda: torch.device("cuda", 5))
    assert Ranks().device == torch.device("cuda", 5)


def test_tensors_of_a_group_that_was_given_its_gpu_lie_there(alone, monkeypatch):
    monkeypatch.setattr(ranks, "backend_of", lambda *_: "")
    bound = SimpleNamespace(bound_device_id=torch.device("cuda", 6))
    assert Ranks(group=bound).device == torch.device("cuda", 6)
