"""Ranks wait for each other, and exchange values and errors, however slow a disk is.

A collective has a time limit, --timeout-s, so that a hanging rank is found. Loading and saving may
be slow, so before the collectives that follow them all ranks meet here, without that limit. A rank
that is gone is noticed at once. Values are sent by torch's object collectives, through gloo, only
between the ranks of one job.
"""

import pickle
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar, cast

import torch.distributed as dist

from muster.errors import MusterError, text_of

from .exit_guard import PeerFailed

T = TypeVar("T")

# torch after 2.13 has a new name for it and warns of the old one.
set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout

# For preparing, loading and saving; after it a disk counts as gone, not slow.
PATIENCE_S = 3600.0
POLL_S = 0.005


def wait_for_all(world_size: int) -> None:
    """Return when all ranks have called this: a barrier without the limit of --timeout-s.

    Signals are handled meanwhile.

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


def gather(world_size: int, value: T) -> list[T]:
    """The value of every rank, on every rank."""
    if world_size == 1:
        return [value]
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, value, group=gloo_group())
    return values


def of_each(world_size: int, act: Callable[[], T]) -> list[T]:
    """The result of `act` on each rank, on every rank, however long it takes.

    Raises:
        Exception: what `act` raised here; otherwise a PeerFailed with the message of a failed rank.
    """
    failure = None
    try:
        outcome: tuple[Any, str] = act(), ""
        pickle.dumps(outcome)  # find out if it cannot be sent before others wait for it
    except Exception as error:  # noqa: BLE001  any error, since the others wait
        kind = "" if isinstance(error, MusterError) else f"{type(error).__name__}: "
        host = socket.gethostname()
        outcome = None, f"a worker on {host} could not go on: {kind}{text_of(error)}"
        failure = error
    wait_for_all(world_size)
    outcomes: list[tuple[Any, str]] = gather(world_size, outcome)
    if failure is not None:
        raise failure
    for _, problem in outcomes:
        if problem:
            raise PeerFailed(problem)
    return [value for value, _ in outcomes]


def of_first(rank: int, world_size: int, act: Callable[[], T]) -> T:
    """The result of `act` on rank 0, on every rank; raises like `of_each`."""
    return cast(T, of_each(world_size, act if rank == 0 else lambda: None)[0])


def gloo_group() -> dist.ProcessGroup:
    """A group of all ranks for tensors in CPU memory. All ranks call this alike.

    Its barriers can have their own time limit, and be polled.
    """
    everyone = dist.group.WORLD
    assert everyone is not None  # all have met
    return everyone if dist.get_backend(everyone) == "gloo" else _beside(everyone)


@lru_cache(maxsize=1)
def _beside(everyone: dist.ProcessGroup) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE_S))
    return group
