"""Ranks wait for each other, and exchange values and errors, however slow a disk is.

A collective has a time limit, --timeout-s, so that a hanging rank is found. Loading and saving may
be slow, so before the collectives that follow them all ranks meet here, without that limit. A rank
that is gone is noticed at once. Ranks exchange JSON and raw tensors through gloo: torch's object
collectives would unpickle, and so run, what a stranger sends, since torch's ports have no password.
"""

import json
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from muster.errors import MusterError, text_of
from muster.writing import parsed

from .exit_guard import PeerFailed

T = TypeVar("T")

# torch after 2.13 has a new name for it and warns about the old one.
set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout

# How late a rank may be when the others wait for work that it does on its own; later, it hangs.
PATIENCE_S = 3600.0
# The same when a rank prepares data, or reads or writes a checkpoint: a large one takes hours.
DISK_PATIENCE_S = 24 * PATIENCE_S
POLL_S = 0.005


def wait_for_all(world_size: int, patience_s: float | None = None) -> None:
    """Return when all ranks have called this: a barrier without the limit of --timeout-s.

    Signals are handled meanwhile.

    Raises:
        RuntimeError: a rank is gone, or did not come within `patience_s` (or `PATIENCE_S`) seconds.
    """
    if world_size == 1:
        return
    options = dist.BarrierOptions()
    options.timeout = timedelta(seconds=PATIENCE_S if patience_s is None else patience_s)
    barrier = gloo_group().barrier(options)
    while not barrier.is_completed():
        time.sleep(POLL_S)
    barrier.wait()


def collect(rank: int, world_size: int, collector: int, tensor: Tensor) -> list[Tensor]:
    """The `tensor` of every rank, on rank `collector`; on the others, an empty list.

    It has the same shape on every rank. The limit of --timeout-s does not apply, since many large
    tensors arrive at one rank.
    """
    if world_size == 1:
        return [tensor]
    options = dist.GatherOptions()
    options.rootRank = collector
    options.timeout = timedelta(seconds=DISK_PATIENCE_S)
    data = tensor.reshape(-1).view(torch.uint8)  # gloo does not support every type
    is_here = rank == collector
    rows = [torch.empty_like(data) for _ in range(world_size)] if is_here else []
    gloo_group().gather([rows] if is_here else [], [data], options).wait()
    return [row.view(tensor.dtype).view(tensor.shape) for row in rows]


def gather(world_size: int, value: T) -> list[T]:
    """The value of every rank, on every rank, in the form that JSON gives it.

    So tuples, tensors and arrays become lists, and keys become strings, even on a single rank.

    Raises:
        TypeError: JSON has no form for a part of it.
    """
    if world_size == 1:
        return [json.loads(_as_json(value))]
    rows = _gathered(world_size, encoded(value))
    return [cast(T, _value_of(rank, data)) for rank, data in enumerate(rows)]


def encoded(value: Any) -> Tensor:
    """The bytes of a value's JSON.

    Raises:
        TypeError: JSON has no form for a part of it.
    """
    return torch.frombuffer(bytearray(_as_json(value).encode()), dtype=torch.uint8)


def _as_json(value: Any) -> str:
    return json.dumps(value, default=_as_list)


def _as_list(value: Any) -> Any:
    if not hasattr(value, "tolist"):  # of tensors, and of numpy's arrays and numbers
        raise TypeError(f"a value of type {type(value).__name__} cannot be sent to other ranks")
    return value.tolist()


def decoded(data: Tensor) -> Any:
    """The value in `encoded`'s bytes.

    Raises:
        ValueError: `data` are not such bytes.
    """
    return parsed(data.numpy().tobytes())


def _value_of(rank: int, data: Tensor) -> Any:
    try:
        return decoded(data)
    except ValueError as error:
        raise PeerFailed(
            f"rank {rank} sent a value that cannot be decoded: {str(error)[:200]}"
        ) from None


def _gathered(world_size: int, data: Tensor) -> list[Tensor]:
    """The bytes of every rank, which may be of different lengths."""
    group = gloo_group()
    sizes = [torch.empty(1, dtype=torch.long) for _ in range(world_size)]
    dist.all_gather(sizes, torch.tensor([len(data)]), group=group)
    longest = max(int(size) for size in sizes)
    rows = [torch.empty(longest, dtype=torch.uint8) for _ in range(world_size)]
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(data)] = data
    dist.all_gather(rows, padded, group=group)
    return [row[: int(size)] for row, size in zip(rows, sizes, strict=True)]


def gather_results(
    world_size: int, act: Callable[[], T], patience_s: float | None = None
) -> list[T]:
    """The result of `act` on each rank, on every rank, even if it takes up to `patience_s`.

    Raises:
        Exception: what `act` raised here; otherwise a PeerFailed with the message of a failed rank.
    """
    failure = None
    try:
        outcome: tuple[Any, str] = act(), ""
        encoded(outcome)  # find out if it cannot be sent before others wait for it
    except Exception as error:  # noqa: BLE001  any error, since the others wait
        kind = "" if isinstance(error, MusterError) else f"{type(error).__name__}: "
        host = socket.gethostname()
        outcome = None, f"a worker on {host} failed: {kind}{text_of(error)}"
        failure = error
    wait_for_all(world_size, patience_s)
    outcomes: list[tuple[Any, str]] = gather(world_size, outcome)
    if failure is not None:
        raise failure
    for _, problem in outcomes:
        if problem:
            raise PeerFailed(problem)
    return [value for value, _ in outcomes]


def gather_on_first(rank: int, world_size: int, act: Callable[[], T]) -> list[T]:
    """The result of `act` on each rank, on rank 0; the others receive only lengths, and return [].

    It raises like `gather_results`.
    """
    if world_size == 1:
        return [act()]
    local = list[Tensor]()

    def encode() -> int:
        local.append(encoded(act()))
        return len(local[0])

    lengths = gather_results(world_size, encode)
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: lengths[rank]] = local[0]
    rows = collect(rank, world_size, 0, padded)
    return [_value_of(peer, row[: lengths[peer]]) for peer, row in enumerate(rows)]


def broadcast_result(
    rank: int, world_size: int, act: Callable[[], T], patience_s: float | None = None
) -> T:
    """The result of `act` on rank 0, on every rank; raises like `gather_results`."""
    return cast(T, gather_results(world_size, act if rank == 0 else lambda: None, patience_s)[0])


def gloo_group() -> dist.ProcessGroup:
    """A group of all ranks for tensors in CPU memory. All ranks must call this.

    Its barriers can have their own time limit, and be polled.
    """
    everyone = dist.group.WORLD
    assert everyone is not None  # all have met
    return everyone if dist.get_backend(everyone) == "gloo" else _beside(everyone)


@lru_cache(maxsize=1)
def _beside(everyone: dist.ProcessGroup) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE_S))
    return group
