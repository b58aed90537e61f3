"""`muster.sync` with any process groups that a program has made, in whatever way."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import muster
from tests.train.workers import results_of
from train.sync.base import SyncOptions
from train.sync.ddp.data_parallel import HookChoice, SyncedDataParallel
from train.sync.modes.all_reduce import AllReduceHook
from train.sync.ranks import Ranks, backend_of

CPU = torch.device("cpu")
WAYS: tuple[dict[str, Any], ...] = (
    {"mode": "gather_scatter"},
    {"compress": "powersgd"},
    {"synced_batchnorm": True},
)
WITHOUT_ANOTHER_GROUP: tuple[dict[str, Any], ...] = ({}, {"mode": "ddp"}, {"compress": "bf16"})


@pytest.fixture(params=[None, "gloo", "cpu:gloo"])
def group_of_one(request: pytest.FixtureRequest) -> Iterator[str | None]:
    dist.init_process_group(request.param, store=dist.HashStore(), rank=0, world_size=1)
    yield request.param
    dist.destroy_process_group()


def test_gloo_buckets_and_rows_apply_in_any_process_group(group_of_one):
    hook_choice = HookChoice.for_mode(AllReduceHook, SyncOptions())
    words = nn.Embedding(3000, 96)
    for group in (None, dist.new_group([0]), dist.new_group([0], backend="gloo")):
        assert hook_choice.bucket_options(CPU, group) == {"bucket_cap_mb": 4.0}
        made = SyncedDataParallel(words, hook_choice, process_group=group)
        assert made.hook._by_rows == {words.weight}
        assert backend_of(CPU, Ranks(group=group).own_group(10)) == "gloo"


def test_group_of_the_model_is_used_not_the_default_group():
    """The default group's backend, such as NCCL, may be unable to send CPU tensors."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    default = dist.group.WORLD
    try:
        gloo = dist.new_group([0], backend="gloo")
        dist.distributed_c10d._world.pg_backend_config[default] = "cuda:nccl"
        assert backend_of(CPU) == "" and backend_of(torch.device("cuda")) == "nccl"
        hook_choice = HookChoice.for_mode(AllReduceHook, SyncOptions())
        assert hook_choice.bucket_options(CPU) == {} and hook_choice.bucket_options(CPU, gloo) == {
            "bucket_cap_mb": 4.0
        }
        assert Ranks(group=gloo).device == CPU
        assert backend_of(CPU, Ranks(group=gloo).own_group(10)) == "gloo"
    finally:
        dist.destroy_process_group()


def gradient(wrapped_by: dict[str, Any], group: dist.ProcessGroup | None) -> torch.Tensor:
    """Return the first weight's gradient: the mean of (1 + rank) over the ranks of `group`."""
    layers = [nn.Linear(1, 1, bias=False), nn.Linear(1, 64), nn.BatchNorm1d(64)]
    for param in layers[0].parameters():
        nn.init.ones_(param)
    model = muster.sync(nn.Sequential(*layers), process_group=group, timeout_s=20, **wrapped_by)
    normed = model(torch.ones(2, 1))
    first = model.module[0].weight
    (normed.sum() * 0 + first.sum() * (1 + dist.get_rank())).backward()
    return first.grad


def work(ranks: Ranks) -> list[float]:
    for members in ([0], [0], [1, 2]):
        dist.new_group(members)
    if ranks.rank == 2:
        dist.new_group([2], use_local_synchronization=True)
    some = dist.new_group([0, 2])
    gradients = [gradient(way, None).item() for way in WAYS]
    if ranks.rank in (0, 2):
        gradients += [gradient(way, some).item() for way in WITHOUT_ANOTHER_GROUP]
        for way in WAYS:
            with pytest.raises(muster.UsageError, match=r"has 2 of 3 ranks.*mode='all_reduce'"):
                gradient(way, some)
    dist.barrier(dist.new_group())  # and the program's next groups are alike again
    return gradients


def test_model_of_some_ranks_has_modes_that_need_no_other_group(tmp_path):
    """The ranks are in different numbers of groups, as torch allows."""
    every = results_of(work, 3, tmp_path)
    for rank, gradients in enumerate(every):
        ways = len(WAYS) + (len(WITHOUT_ANOTHER_GROUP) if rank in (0, 2) else 0)
        assert gradients == pytest.approx([2.0] * ways)
