"""A process group of GPUs is NCCL's, and connects when it is made."""

import pytest
import torch
import torch.distributed as dist

from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_a_group_of_gpus_connects_when_it_is_made(device, monkeypatch):
    asked = {}

    class Made(Exception):
        pass

    def init(backend, **options):
        asked.update(options, backend=backend)
        raise Made

    world = World(rank=0, world_size=2)
    monkeypatch.setattr(rendezvous, "_open_store", lambda *words: dist.HashStore())
    monkeypatch.setattr(rendezvous, "_gather_workers", lambda *words: [])
    monkeypatch.setattr(rendezvous, "choose_interface", lambda world: None)
    monkeypatch.setattr(rendezvous.placement, "choose_device", lambda *words: torch.device(device))
    monkeypatch.setattr(dist, "init_process_group", init)
    with pytest.raises(Made), rendezvous.meet(world, Meeting()):
        pass
    on_gpu = device != "cpu"
    assert asked["backend"] == ("nccl" if on_gpu else "gloo")
    assert asked["device_id"] == (torch.device(device) if on_gpu else None)
