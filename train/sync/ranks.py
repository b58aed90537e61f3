"""The processes that train one model together, and the collectives that all of them call.

Each process counts what it sends: a step's gradients one by one, and everything by operation.

Each process also adds up the seconds that it waits for other processes: `waits`.

A collective has a fixed cost in addition to its bytes. One collective for each of a model's
hundreds of parameters would be slow, so tensors are joined (`groups`, `flatten`, `unflatten`).
"""

import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from muster.errors import UsageError

T = TypeVar("T", bound=Tensor)
P = ParamSpec("P")
R = TypeVar("R")

# Versions of torch after 2.12 rename these, and warn about the old names.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

BROADCAST_BYTES = 4 * 2**20  # of joined tensors in one broadcast
SMALL_TENSOR_SHARE = 1 / 8  # share of a group below which a tensor is not worth a collective


class Moment(NamedTuple):
    """A point in time of this process."""

    at_s: float  # by a monotonic clock
    waited_s: float  # the total of `waits` by then

    def waited_until(self, later: "Moment") -> float:
        """Return the seconds that this process waited for others from here to `later`."""
        return later.waited_s - self.waited_s

    def computed_until(self, later: "Moment") -> float:
        """Return all other seconds from here to `later`."""
        return later.at_s - self.at_s - self.waited_until(later)


class Waits:
    """Adds up the seconds that this process waits for other ranks or for data from them.

    The sum is a step's `sync_s`, whatever the mode, and is not part of any other phase. The whole
    time from the call of a collective to its end counts as waiting, whether other ranks are late or
    bytes are on their way. On a GPU the stream waits, not this process, so there `timers` mark both
    ends in the stream.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.timers = weakref.WeakSet[Any]()  # `StepTimer`s of models on a GPU
        self._is_waiting = False

    def now(self) -> Moment:
        return Moment(time.perf_counter(), self.seconds)

    def during(self, call: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Return what `call` returns, and count its whole time as waiting, nested calls once."""
        # reading a clock would break a graph that is being compiled
        if self._is_waiting or torch.compiler.is_compiling():
            return call(*given, **named)
        self._is_waiting = True
        began = [(timer, timer.begin_wait()) for timer in self.timers]
        began_s = time.perf_counter()
        try:
            return call(*given, **named)
        finally:
            self.seconds += time.perf_counter() - began_s
            for timer, mark in began:
                timer.end_wait(mark)
            self._is_waiting = False


waits = Waits()  # of this process, which waits for one thing at a time


class Collective(NamedTuple):
    """One collective, as this rank took part in it."""

    operation: str  # torch's name for it
    shape: tuple[int, ...]
    dtype: str
    nbytes: int  # of the tensor that this rank passed
    name: str = ""  # the parameter's, if the tensor is the gradient of one parameter


class CollectiveLedger:
    """One rank's account; bytes of one operation can be added up: every algorithm is linear."""

    def __init__(self) -> None:
        self.step: list[Collective] = []  # gradient collectives since `take_step`
        self.gradients: Counter[str] = Counter()  # bytes by operation, since the start
        self.control: Counter[str] = Counter()  # the same for the rest: losses, flags, replicas

    def gradient(self, operation: str, tensor: Tensor) -> None:
        """Record a collective on gradients."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.add(Collective(operation, tuple(tensor.shape), dtype, tensor.nbytes))

    def add(self, collective: Collective) -> None:
        """Record a collective on gradients that torch started itself."""
        self.step.append(collective)
        self.gradients[collective.operation] += collective.nbytes

    def name_parameter(self, first: int, name: str, gradient: Tensor) -> None:
        """Set the name in the step's collectives, from index `first` on, that sent `gradient`."""
        shape = tuple(gradient.shape)
        self.step[first:] = [
            collective._replace(shape=shape, name=name)
            if collective.nbytes == gradient.nbytes
            else collective
            for collective in self.step[first:]
        ]

    def take_step(self) -> list[Collective]:
        """The gradient collectives since the last call."""
        taken, self.step = self.step, []
        return taken


@dataclass(frozen=True)
class Ranks:
    """This process's place in torch's default group or in `group`; it accounts for what it sends.

    Methods that communicate are collectives: all ranks call them, in the same order, with the same
    shapes. A single process needs no group; then nothing is sent.
    """

    rank: int = 0
    world_size: int = 1
    group: dist.ProcessGroup | None = field(default=None, compare=False, repr=False)
    ledger: CollectiveLedger = field(default_factory=CollectiveLedger, compare=False, repr=False)
    carries_gradients: bool = False  # otherwise losses, flags, replicas
    in_background: bool = False  # a thread calls the collectives, while this process may compute

    def note(self, operation: str, tensor: Tensor) -> None:
        """Account for a collective to which this rank passes `tensor`."""
        if self.carries_gradients:
            self.ledger.gradient(operation, tensor)
        else:
            self.ledger.control[operation] += tensor.nbytes

    @property
    def device(self) -> torch.device:
        """The device on which the group's backend needs its tensors.

        Raises:
            UsageError: it is a GPU, but this process has not chosen one of several.
        """
        if dist.is_initialized() and not backend_of(torch.device("cpu"), self.group):
            bound = getattr(self.group or dist.group.WORLD, "bound_device_id", None)
            return bound or chosen_gpu()
        return torch.device("cpu")

    def all_reduce(self, tensor: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """Reduce `tensor` over the ranks, in place."""
        if self.world_size > 1:
            self._wait(dist.all_reduce, tensor, op=op, group=self.group)
            self.note("all_reduce", tensor)
        return tensor

    def all_gather(self, row: Tensor) -> Tensor:
        """Return the `row` (n,) of every rank, as (world_size, n)."""
        if self.world_size == 1:
            return row[None]
        rows = row.new_empty(self.world_size, *row.shape)
        self._wait(all_gather_single, rows.view(-1), row, group=self.group)
        self.note("all_gather", row)
        return rows

    @torch.no_grad()
    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Make `tensors` equal to those of rank 0, on every rank."""
        if self.world_size == 1:
            return
        for group in groups([tensor.detach() for tensor in tensors], BROADCAST_BYTES):
            flat = flatten(group)
            self._wait(dist.broadcast, flat, group=self.group, group_src=0)
            self.note("broadcast", flat)
            unflatten(flat, group)

    def _wait(self, collective: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        if self.in_background:
            return collective(*given, **named)
        return waits.during(collective, *given, **named)

    def own_group(self, timeout_s: float) -> dist.ProcessGroup:
        """Create a new group of the same ranks, which must be all ranks; collective.

        Collectives of one group are matched by their order, so collectives that run at the same
        time as others need their own group.

        Raises:
            UsageError: the group does not contain all ranks.
        """
        self.require_all()
        backend = dist.get_backend(self.group)
        group: dist.ProcessGroup = dist.new_group(
            backend=backend, timeout=timedelta(seconds=timeout_s)
        )
        return group

    def require_all(self) -> None:
        """Refuse a group without all ranks if `own_group` is needed.

        Raises:
            UsageError: the group does not contain all ranks.
        """
        if self.group is not None and (members := self.group.size()) < dist.get_world_size():
            raise UsageError(
                f"process_group= has {members} of {dist.get_world_size()} ranks, but this mode, "
                "compressor or BatchNorm needs a second group, which only all ranks together "
                "can create"
                "\ntip: leave process_group= out, or use only mode='all_reduce'"
            )


def chosen_gpu() -> torch.device:
    """The GPU that this process has chosen.

    Raises:
        UsageError: it has not chosen one of several, and would share GPU 0 with another rank.
    """
    number = torch.cuda.current_device()
    local_rank = os.environ.get("LOCAL_RANK") or "0"
    if number == 0 and local_rank != "0" and (count := torch.cuda.device_count()) > 1:
        raise UsageError(
            f"LOCAL_RANK is {local_rank}, but this process has not chosen a GPU and would use "
            f"the first of {count}"
            "\ntip: call torch.cuda.set_device(LOCAL_RANK) before init_process_group()"
        )
    return torch.device("cuda", number)


def backend_of(device: torch.device, group: dist.ProcessGroup | None = None) -> str:
    """The backend that sends tensors of `device` in torch's default group or `group`, or ""."""
    # "cpu:gloo,cuda:nccl", however the group was created; get_backend may return "undefined"
    pairs = dist.get_backend_config(group).split(",")
    return dict(pair.split(":") for pair in pairs).get(device.type, "")


def current_ranks() -> Ranks:
    """This process's place in the default group; without a group, a single process.

    Raises:
        UsageError: the environment describes several ranks, but there is no process group.
    """
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size != "1":
        raise UsageError(
            f"WORLD_SIZE is {world_size}, but this process has not joined a process group yet"
            "\ntip: call torch.distributed.init_process_group() or muster.init() first"
        )
    return Ranks()


def moved(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy `tensor` to `device`, from pinned memory so that the host does not wait for a GPU."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, dtype, non_blocking=True)


class HostCopy:
    """A copy of a tensor to the host, started now; `wait` waits for it, not for later work."""

    def __init__(self, tensor: Tensor) -> None:
        self._copy = tensor.to("cpu", non_blocking=True)  # from a GPU into pinned memory
        self._copied: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> Tensor:
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy


def groups(tensors: Sequence[T], limit_bytes: int) -> list[list[T]]:
    """Sort tensors into groups of one dtype and of at most `limit_bytes`, or of a single tensor.

    A tensor of half the limit or more is its own group, so that it need not be copied. Tensors
    before it do not wait for tensors after it, unless they are too small to be worth a collective.
    Groups are in the order in which they become complete if `tensors` become ready one after the
    other.
    """
    index_groups: list[list[int]] = []
    begun: dict[torch.dtype, tuple[list[int], int]] = {}  # group and bytes, by dtype
    for index, tensor in enumerate(tensors):
        if 2 * tensor.nbytes >= limit_bytes:
            index_groups.append([index])
            begun = {
                kind: entry
                for kind, entry in begun.items()
                if entry[1] < SMALL_TENSOR_SHARE * limit_bytes
            }
            continue
        group, used = begun.get(tensor.dtype, (None, 0))
        if group is None or used + tensor.nbytes > limit_bytes:
            group, used = [], 0
            index_groups.append(group)
        group.append(index)
        begun[tensor.dtype] = group, used + tensor.nbytes
    index_groups.sort(key=lambda group: group[-1])
    return [[tensors[index] for index in group] for group in index_groups]


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Copy all values of `tensors`, one after the other, into one tensor."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the values of `flat`, as `flatten` has arranged them, into `tensors`."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))


def dense_gradient(param: nn.Parameter) -> Tensor:
    """Make the gradient of `param` dense and return it; zeros if it had none."""
    if param.grad is None:
        param.grad = torch.zeros_like(param)
    elif param.grad.is_sparse:
        param.grad = param.grad.to_dense()
    return param.grad
