"""What `muster.sync` returns on NCCL; a test double reports NCCL as the group's backend."""

import pytest
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from train.program.recorder import sent_by
from train.sync.base import SyncOptions
from train.sync.ddp import data_parallel, hooks, reducer, torch_ddp
from train.sync.ddp.data_parallel import SyncedDataParallel, sync
from train.sync.modes.all_reduce import AllReduce
from train.sync.ranks import Ranks


@pytest.fixture(params=["nccl"])
def backend(request, monkeypatch):
    """Make a group of two ranks, of which this process is one."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    for module in (data_parallel, hooks):
        monkeypatch.setattr(module, "backend_of", lambda *_: request.param)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("options", [{}, {"sparse_rows": False}, {"bucket_mb": 1.0}])
def test_all_reduce_on_nccl_is_plain_ddp_without_a_hook(backend, options):
    model = sync(nn.Linear(2, 1), **options)
    assert type(model) is DistributedDataParallel
    assert reducer.hooks_of(model) == []
    assert [(one.operation, one.nbytes) for one in sent_by(model)] == [("all_reduce", 12)]


def test_all_reduce_on_nccl_is_ddp_without_hook(backend, monkeypatch):
    monkeypatch.setattr(torch_ddp, "fix_buckets", lambda *_: None)  # the double sends nothing
    mode = AllReduce(Ranks(0, 2), SyncOptions())
    assert reducer.hooks_of(mode.wrap(nn.Linear(2, 1))) == []


@pytest.mark.parametrize("options", [{"compress": "bf16"}, {"mode": "gather_scatter"}])
def test_options_that_ddp_lacks_need_a_hook_on_nccl(backend, options):
    assert type(sync(nn.Linear(2, 1), **options)) is SyncedDataParallel


@pytest.mark.parametrize("backend", ["gloo"], indirect=True)
def test_all_reduce_on_gloo_keeps_its_hook(backend):
    assert type(sync(nn.Linear(2, 1))) is SyncedDataParallel
