"""Over NCCL all_reduce is done by torch's DDP, timed by events that nothing waits for."""

from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from tests.train.workers import run_on_ranks
from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.sync import base
from train.sync.base import SyncOptions
from train.sync.modes.all_reduce import AllReduce
from train.sync.ranks import Ranks

FOUR = Ranks(0, 4)


@pytest.mark.parametrize(
    ("mode", "ranks", "options", "found"),
    [
        ("all_reduce", FOUR, SyncOptions(), "ddp"),
        ("all_reduce", FOUR, SyncOptions(compress="bf16"), "ddp"),
        ("all_reduce", FOUR, SyncOptions(overlap=False), "all_reduce"),
        ("all_reduce", FOUR, SyncOptions(bucket_mb=4.0), "all_reduce"),
        ("all_reduce", FOUR, SyncOptions(bucket_mb="auto"), "all_reduce"),
        ("all_reduce", Ranks(), SyncOptions(), "all_reduce"),
        ("gather_scatter", FOUR, SyncOptions(), "gather_scatter"),
    ],
)
def test_whoever_asks_for_nothing_else_gets_ddp_over_nccl(mode, ranks, options, found):
    assert base.engine(mode, ranks, options) == mode  # there is no NCCL here
    with patch.object(base, "uses_nccl", lambda: True):
        assert base.engine(mode, ranks, options) == found


def test_gloo_keeps_our_own(tmp_path):
    assert type(base.build("all_reduce", Ranks(), SyncOptions())) is AllReduce
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/s", rank=0, world_size=1)
    try:
        assert not base.uses_nccl()
    finally:
        dist.destroy_process_group()


def test_its_gradients_are_the_mean_and_its_times_cost_no_wait():
    run_on_ranks("tests/train/sync/modes/nccl_engine_worker.py", 2)


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
    monkeypatch.setattr(rendezvous, "choose_device", lambda *words: torch.device(device))
    monkeypatch.setattr(dist, "init_process_group", init)
    with pytest.raises(Made), rendezvous.meet(world, Meeting()):
        pass
    on_gpu = device != "cpu"
    assert asked["backend"] == ("nccl" if on_gpu else "gloo")
    assert asked["device_id"] == (torch.device(device) if on_gpu else None)
