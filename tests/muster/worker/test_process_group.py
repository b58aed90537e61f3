"""A worker reports whether it has connected to others by torch, or None if that is unknown."""

import sys
import types

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from muster.worker import process_group
from muster.worker.process_group import OTHER_LIBRARIES, SPAWNS, has_connected


@pytest.fixture(autouse=True)
def _as_at_the_start(monkeypatch):
    """Remove other tests' groups and all modules by which this process may have met others."""
    for name in ("_default_pg_init_method", "_backend"):
        monkeypatch.setattr(distributed_c10d, name, None)
    for name in (*OTHER_LIBRARIES, *SPAWNS):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("how", [{}, {"backend": "gloo"}, {"store": None, "backend": "gloo"}])
def test_a_group_is_known_even_after_its_end(how):
    assert has_connected() is False
    if "store" in how:
        how["store"] = dist.HashStore()
    else:
        how["init_method"] = "tcp://127.0.0.1:0"
    dist.init_process_group(rank=0, world_size=1, **how)
    assert has_connected() is True
    dist.destroy_process_group()
    assert has_connected() is True


@pytest.mark.parametrize("module", [*OTHER_LIBRARIES, *SPAWNS])
def test_a_program_that_may_meet_otherwise_says_nothing(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    assert has_connected() is None


def test_process_group_state_is_unknown_without_known_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, distributed_c10d.__name__, types.ModuleType("another"))
    assert has_connected() is None
    monkeypatch.delitem(sys.modules, distributed_c10d.__name__)
    assert has_connected() is False  # torch without its distributed module
    monkeypatch.setattr(process_group.sys, "modules", {})
    assert has_connected() is None
