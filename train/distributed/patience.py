"""All ranks wait for the slowest, however slow its disk; a rank that is gone is noticed at once.

A collective has a time limit, --timeout-s, so that a rank that hangs is found. Loading and saving
have none that a slow disk could miss: before the collectives that follow them, all ranks meet here.
"""

import time
from datetime import timedelta
from functools import lru_cache

import torch.distributed as dist

# Up to torch 2.13 it has another name, which later ones warn of.
set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout

# Of preparing, loading and saving; above it a disk is taken to be gone, not slow.
PATIENCE_S = 3600.0
POLL_S = 0.005


def wait_for_all(world_size: int) -> None:
    """Return when all ranks are here: a barrier that does not end after --timeout-s.

    Signals are taken meanwhile.

    Raises:
        RuntimeError: a rank is gone, or did not come within `PATIENCE_S` seconds.
    """
    if world_size == 1:
        return
    options = dist.BarrierOptions()
    options.timeout = timedelta(seconds=PATIENCE_S)
    arrived = gloo_group().barrier(options)
    while not arrived.is_completed():
        time.sleep(POLL_S)
    arrived.wait()


def gloo_group() -> dist.ProcessGroup:
    """A group of all ranks that sends what lies in memory of the CPU. All call it alike.

    Its barriers can have a time limit of their own, and be polled.
    """
    everyone = dist.group.WORLD
    assert everyone is not None  # all have met
    return everyone if dist.get_backend(everyone) == "gloo" else _beside(everyone)


@lru_cache(maxsize=1)
def _beside(everyone: dist.ProcessGroup) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE_S))
    return group
