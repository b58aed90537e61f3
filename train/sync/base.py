"""A sync mode makes every rank's gradients the plain mean over ranks; this is what one must do."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from configs.settings.train import TrainConfig
from train.distributed.world import World
from train.model.precision import Precision
from train.records.ledger import Collective
from train.sync.buckets.layout import flatten, groups, spread

MIB = 2**20
DEFAULT_MB = 25.0  # torch's own for DDP, whose buckets cannot be changed once it is made
BROADCAST_BYTES = 4 * MIB  # at a time
NS = 1e9


class GradSync(ABC):
    """Implemented by each file of train/sync/modes/, whose `build(world, config)` makes one."""

    is_exact = True  # whether a run equals the same run in a single process

    def __init__(self, world: World, config: TrainConfig) -> None:
        self.world, self.config = world, config
        self.messages: list[str] = []  # to be told once
        # of the last step: communication during the backward pass
        self.comm_s = self.overlapped_s = 0.0
        self.payload_bytes = 0  # of all tensors that this rank handed to gradient collectives

    def take_messages(self) -> list[str]:
        """What is to be told to who watches this run, since this was last asked."""
        messages, self.messages = self.messages, []
        return messages

    def note(self, operation: str, tensor: Tensor) -> None:
        """Keep account of a collective on gradients: `operation` is torch's name of it."""
        self.world.ledger.gradient(operation, tensor)
        self.payload_bytes += tensor.nbytes

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model to train; afterwards its replicas are equal on all ranks.

        It may be `model` in a wrapper: the parameters to train stay those of `model`, which is
        evaluated and saved without it.
        """
        broadcast(self.world, [*model.parameters(), *model.buffers()])
        return model

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        """The optimizer to step; only the Accelerate path has one of its own."""
        return optimizer

    def precision(self, config: TrainConfig, device: torch.device) -> Precision:
        """The arithmetic around model and optimizer; called after `wrap` and `prepare`."""
        return Precision(config.precision, device)

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass; may start communication early."""
        loss.backward()

    @abstractmethod
    def sync(self, model: nn.Module) -> None:
        """Afterwards each `.grad` is the mean over ranks, bitwise the same on every rank.

        About the mean, with --compress; and a mode that is not exact may leave gradients local.
        A gradient missing on every rank stays None; one missing on some counts as zero there.
        """

    def exchange(self, model: nn.Module, row: Tensor) -> Tensor:
        """`sync`, and the `row` (n,) of every rank: (world_size, n).

        A mode in which ranks tell each other something small by itself sends the row along.
        """
        rows = all_gather(self.world, row)
        self.sync(model)
        return rows

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Around every micro-batch of a step but its last: gradients only add up locally."""
        return nullcontext()

    def updated(self, model: nn.Module) -> None:
        """The optimizer has taken its step: for modes that synchronise parameters."""
        return

    def settle(self, model: nn.Module) -> None:
        """Afterwards replicas are equal, with what their optimizers keep: to evaluate, to save."""
        return

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of this rank beside the model; the same forms on every rank."""
        return {}

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Go on with a model that was just loaded, and with what `state` returned.

        Where the number of ranks has changed, only what was the same on all of them is there.
        """
        return


@torch.no_grad()
def broadcast(world: World, tensors: Iterable[Tensor]) -> None:
    """Make `tensors` those of rank 0, on every rank."""
    if world.world_size == 1:
        return
    for group in groups([tensor.detach() for tensor in tensors], BROADCAST_BYTES):
        as_it_is = len(group) == 1 and group[0].is_contiguous()
        flat = group[0] if as_it_is else flatten(group)
        dist.broadcast(flat, src=0)
        world.ledger.control["broadcast"] += flat.nbytes
        if not as_it_is:
            spread(flat, group)


def fixed_mb(config: TrainConfig) -> float:
    """The size of buckets where no other is tried."""
    bucket_mb = config.bucket_mb
    return DEFAULT_MB if bucket_mb is None or bucket_mb == "auto" else bucket_mb


def ddp_options(config: TrainConfig) -> dict[str, Any]:
    """How torch's DDP is set up, by itself and through Accelerate.

    Both also leave buffers alone: the trainer averages them, in every mode alike.
    """
    return {
        "bucket_cap_mb": max(fixed_mb(config), 1 / MIB),  # one byte: one bucket per parameter
        "find_unused_parameters": True,  # a parameter that some rank did not use must not hang it
        "gradient_as_bucket_view": True,  # no copy between bucket and gradient
    }


class DdpAccount:
    """Keeps account of what torch's DDP moves by itself, and when, from its own logging data."""

    def __init__(self, grad_sync: GradSync) -> None:
        self._grad_sync, self._buckets = grad_sync, list[Collective]()

    def wrapped(self, model: DistributedDataParallel) -> None:
        """DDP has made the replicas equal; from now on it times every step."""
        model._set_ddp_runtime_logging_sample_rate(1)
        tensors = [*model.parameters(), *model.buffers()]
        nbytes = sum(tensor.nbytes for tensor in tensors)
        self._grad_sync.world.ledger.control["broadcast"] += nbytes
        trained = sum(param.requires_grad for param in model.parameters())
        self._flags_bytes = trained * torch.int32.itemsize

    def stepped(self, model: DistributedDataParallel) -> None:
        """DDP has reduced every bucket, and which parameters were used at all."""
        ledger = self._grad_sync.world.ledger
        assert model.logger is not None
        model.logger.set_runtime_stats_and_log()  # else it knows of the step before only
        logged = model._get_ddp_logging_data()
        self._grad_sync.comm_s = logged.get("backward_comm_time", 0) / NS
        self._grad_sync.overlapped_s = logged.get("backward_compute_comm_overlap_time", 0) / NS
        for one in self.collectives(model, logged):
            ledger.add(one)
            self._grad_sync.payload_bytes += one.nbytes
        ledger.control["all_reduce"] += self._flags_bytes

    def collectives(
        self, model: DistributedDataParallel, logged: Mapping[str, Any]
    ) -> Sequence[Collective]:
        """What DDP has made of the step's gradients: an all_reduce per bucket."""
        if not self._buckets:
            sizes = str(logged["bucket_sizes"]).split(",")
            param = next(param for param in model.parameters() if param.requires_grad)
            dtype = str(param.dtype).removeprefix("torch.")
            self._buckets = [
                Collective("all_reduce", (int(size) // param.itemsize,), dtype, int(size))
                for size in sizes
            ]
        return self._buckets


def all_reduce(world: World, tensor: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
    """Reduce `tensor` over the ranks, in place; alone, there is nothing to do."""
    if world.world_size > 1:
        dist.all_reduce(tensor, op=op)
        world.ledger.control["all_reduce"] += tensor.nbytes
    return tensor


def all_gather(world: World, row: Tensor) -> Tensor:
    """The `row` (n,) of every rank, as (world_size, n)."""
    if world.world_size == 1:
        return row[None]
    rows = row.new_empty(world.world_size, *row.shape)
    dist.all_gather_single(rows.view(-1), row)
    world.ledger.control["all_gather"] += row.nbytes
    return rows


def meet(world: World, device: torch.device) -> None:
    """Wait until all ranks are here."""
    all_gather(world, torch.zeros(1, device=device))
