"""Train alone for --sync-every steps, then step towards the average of all parameters.

With --outer-lr 1 and no momentum that step is the average itself: local SGD (Stich 2019). With 0.7
and Nesterov momentum 0.9 it is DiLoCo (Douillard et al. 2023).

What trains alone is a rank, or with --local-group node all workers of a node together: their
gradients become their exact mean in every step, and only the averages between nodes are rare.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ..base import MIB, GradSync, SyncOptions
from ..buckets.bucketed_sync import BucketSync, Pending
from ..buckets.layout import flatten, groups, spread
from ..buckets.levels import node_groups, two_levels
from ..buckets.levels.two_levels import TwoLevels
from ..ranks import Ranks

Note = Callable[[str, Tensor], None]


class LocalSgd(GradSync):
    """Between two rounds replicas differ: gradients, their norm and the optimizer are a rank's own,
    or a node's.

    The loss of a rank with n of M samples is scaled by n W / M, here as in all modes: with a round
    after every step of plain SGD, it equals the exact ones, whatever the split, and however many
    workers each node has: the average is that over ranks.
    """

    is_exact = False

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(ranks, options)
        self._every, self._alone = options.sync_every, ranks.world_size == 1
        self._bucket_bytes = int(options.fixed_mb * MIB)
        self._lr, self._momentum = options.outer_lr, options.outer_momentum
        self._steps = 0  # since the last round
        self._is_settled = True
        self._inside: WithinNode | None = None  # what averages gradients among a node's workers
        self._between: TwoLevels | None = None
        self._is_last, self._is_averaged = True, False  # micro-batch of a step; its gradients

    def wrap(self, model: nn.Module) -> nn.Module:
        super().wrap(model)
        if self.options.local_group == "node" and not self._alone:
            self._make_groups(model)
        self._agreed = [param.detach().clone() for param in _trained(model)]  # at the last round
        self._outer = SGD(
            self._agreed, lr=self._lr, momentum=self._momentum, nesterov=self._momentum > 0
        )
        return model

    def _make_groups(self, model: nn.Module) -> None:
        nodes, timeout_s = node_groups.find(self.ranks), self.options.timeout_s
        self._alone = len(nodes) == 1  # then all is exact, and there are no rounds
        if node_groups.layered(nodes) and next(model.parameters()).device.type == "cpu":
            self._between = TwoLevels(nodes, self.ranks.rank, timeout_s)
        inside = node_groups.inside(self.ranks, nodes, timeout_s)
        if inside.world_size > 1:
            self._inside = WithinNode(inside, self.options)
            self._inside.wrap(model)
        self._model = model

    @contextmanager
    def _adding_up(self, inside: "WithinNode") -> Iterator[None]:
        self._is_last = False
        try:
            with inside.no_sync(self._model):
                yield
        finally:
            self._is_last = True

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        return super().no_sync(model) if self._inside is None else self._adding_up(self._inside)

    def backward(self, loss: Tensor) -> None:
        """With gradients that are the node's mean afterwards: they are clipped before `sync`."""
        super().backward(loss)
        if self._is_last:
            self._average_inside()

    def _average_inside(self) -> None:
        inside = self._inside
        if inside is not None and not self._is_averaged:
            began = time.perf_counter()
            inside.sync(self._model)
            self.overlapped_s = inside.overlapped_s
            self.comm_s = inside.overlapped_s + time.perf_counter() - began
            self._is_averaged = True

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        self._optimizer = optimizer
        return optimizer

    def sync(self, model: nn.Module) -> None:
        self._average_inside()  # unless `backward` has: a program may call its own
        self._is_averaged = False

    def updated(self, model: nn.Module) -> None:
        if self._alone:
            return
        self._steps, self._is_settled = self._steps + 1, False
        if self._steps == self._every:
            self._round(model, self.note)

    @torch.no_grad()
    def settle(self, model: nn.Module) -> None:
        if self._is_settled:
            return
        if self._steps:
            self._round(model, self._note_control)
        self._average(self._optimizer_states(_trained(model)), self._note_control)
        self._is_settled = True

    @torch.no_grad()
    def _round(self, model: nn.Module, note: Note) -> None:
        """Make parameters what the outer optimizer makes of their average."""
        trained = _trained(model)
        self._average(trained, note)
        for agreed, param in zip(self._agreed, trained, strict=True):
            agreed.grad = agreed - param
        self._outer.step()
        self._outer.zero_grad()
        for agreed, param in zip(self._agreed, trained, strict=True):
            param.copy_(agreed)
        self._steps = 0

    def _average(self, tensors: list[Tensor], note: Note) -> None:
        for group in groups([tensor.detach() for tensor in tensors], self._bucket_bytes):
            flat = flatten(group)
            if self._between is None:
                dist.all_reduce(flat)
                note("all_reduce", flat)
                flat /= self.ranks.world_size
            else:
                self._between.start(flat).wait()
                note(two_levels.OPERATION, flat)
            spread(flat, group)

    def _optimizer_states(self, trained: list[Tensor]) -> list[Tensor]:
        """All numbers that the optimizer keeps, on every rank as many.

        A rank that never used a parameter has none for it yet: there it begins with zeros.
        """
        states = [_numbers(self._optimizer.state[param]) for param in trained]
        counts = torch.tensor([len(state) for state in states], device=trained[0].device)
        most = self.ranks.all_reduce(counts, dist.ReduceOp.MAX).tolist()
        for param, state, count in zip(trained, states, most, strict=True):
            if len(state) < count:
                pairs = zip(trained, states, strict=True)
                other, known = next(pair for pair in pairs if len(pair[1]) == count)
                for key, tensor in known.items():
                    like = param if tensor.shape == other.shape else tensor
                    state[key] = torch.zeros_like(like, dtype=tensor.dtype)
                self._optimizer.state[param].update(state)
        return [state[key] for state in states for key in sorted(state)]

    def state(self) -> dict[str, Tensor]:
        """The outer momentum, the same on every rank; all else is in the model once it settled."""
        states = [self._outer.state[agreed].get("momentum_buffer") for agreed in self._agreed]
        return {
            f"outer momentum/{number}": momentum
            for number, momentum in enumerate(states)
            if momentum is not None
        }

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        self._steps, self._is_settled = 0, True
        for number, (agreed, param) in enumerate(zip(self._agreed, _trained(model), strict=True)):
            agreed.copy_(param.detach())
            momentum = state.get(f"outer momentum/{number}")
            if momentum is not None and self._momentum:
                self._outer.state[agreed]["momentum_buffer"] = momentum.to(param, copy=True)

    def _note_control(self, operation: str, tensor: Tensor) -> None:
        self.ranks.ledger.control[operation] += tensor.nbytes


class WithinNode(BucketSync):
    """Averages gradients among the workers of a node, while further ones are computed."""

    overlaps = True
    default_mb = 4.0

    def start(self, tensor: Tensor) -> Pending:
        self.note("all_reduce", tensor)
        # Nothing else goes through the node's group during the backward pass.
        group = self.ranks.group
        started: Pending = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=group, async_op=True)
        return started


def _trained(model: nn.Module) -> list[Tensor]:
    return [param for param in model.parameters() if param.requires_grad]


def _numbers(state: dict[str, object]) -> dict[str, Tensor]:
    return {
        key: value
        for key, value in state.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }


build = LocalSgd
