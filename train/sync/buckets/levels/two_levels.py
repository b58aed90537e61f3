"""The mean over all ranks in two levels, so that each node's link carries every value once.

A ring through all N ranks takes 2 (N-1)/N of the bytes over each node's link, and 2 (N-1) steps one
after the other; between m nodes it is 2 (m-1)/m, in 2 (m-1) steps. So a tensor of n values is cut
into P parts, one for each of the first P workers of every node (P: the workers of the node that has
fewest), and goes through three stages:

    up       inside a node each worker sends part p to worker p, which adds up what comes
    across   the workers p of all nodes all-reduce their sums, all p at the same time
    down     inside a node worker p sends the mean of part p to all

    bytes of one rank: (L-1)/L n up, 2 (m-1)/m n/L across, (L-1)/L n down, with L workers on a node

Nodes may have unlike numbers of workers: those beyond the first P own no part, and the sum of all
is divided by N, so that the mean is that of the ranks, not that of the nodes. Each sum is made in
one place and sent to the others: all ranks hold the same bits.

Each stage has a thread and a group of its own, and passes tensors on to the next one in the order
in which they were started; while one is between nodes, the next is added up inside.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch.distributed as dist
from torch import Tensor

from .node_groups import one_of

OPERATION = "all_reduce_by_node"  # as the ledger has it


class TwoLevels:
    """`nodes`: the ranks of each (`node_groups.find`); all ranks make it, and start alike."""

    def __init__(self, nodes: Sequence[list[int]], rank: int, timeout_s: float) -> None:
        own = next(members for members in nodes if rank in members)
        self._world_size = sum(map(len, nodes))
        self._parts = min(map(len, nodes))
        self._workers, self._at = len(own), own.index(rank)
        self._owns = self._at < self._parts
        self._up, self._down = one_of(nodes, timeout_s), one_of(nodes, timeout_s)
        same_place = [[members[at] for members in nodes] for at in range(self._parts)]
        self._across = one_of(same_place, timeout_s)
        stages: list[Callable[[Moving], None]] = [self._add_up, self._cross, self._hand_out]
        self._stages = [
            (ThreadPoolExecutor(max_workers=1, thread_name_prefix=stage.__name__), stage)
            for stage in stages
        ]

    def start(self, tensor: Tensor) -> "Moving":
        """Begin to make `tensor` (contiguous) the mean over all ranks, in place."""
        flat = tensor.view(-1)
        each = -(-len(flat) // self._parts)
        owned = [flat[each * part : each * (part + 1)] for part in range(self._parts)]
        moving = Moving([*owned, *[flat[:0]] * (self._workers - self._parts)])
        self._enter(moving, 0)
        return moving

    def _enter(self, moving: "Moving", number: int) -> None:
        thread, _ = self._stages[number]
        thread.submit(self._run, moving, number)

    def _run(self, moving: "Moving", number: int) -> None:
        try:
            self._stages[number][1](moving)
        except BaseException as error:  # noqa: BLE001 (whoever waits for it is told)
            moving.done.set_exception(error)
            return
        if number + 1 < len(self._stages):
            self._enter(moving, number + 1)
        else:
            moving.done.set_result(None)

    def _add_up(self, moving: "Moving") -> None:
        parts = moving.parts
        if self._workers == 1:
            moving.own = parts[0]
            return
        came = parts[self._at].new_empty(self._workers, len(parts[self._at]))
        came[self._at] = parts[self._at]
        _exchange(sent=parts, into=list(came), own=self._at, among=self._up)
        moving.own = came.sum(dim=0, dtype=came.dtype)

    def _cross(self, moving: "Moving") -> None:
        if self._owns and len(moving.own):
            dist.all_reduce(moving.own, group=self._across)
            moving.own.div_(self._world_size)

    def _hand_out(self, moving: "Moving") -> None:
        if self._workers == 1:
            return
        moving.parts[self._at].copy_(moving.own)
        sent = [moving.own] * self._workers
        _exchange(sent=sent, into=moving.parts, own=self._at, among=self._down)


def _exchange(
    *, sent: Sequence[Tensor], into: Sequence[Tensor], own: int, among: dist.ProcessGroup | None
) -> None:
    """Each worker gets its tensor of `sent`, and has what comes from it in `into`.

    All at once and without copies, into and out of the parts as they lie.
    """
    others = [at for at in range(len(sent)) if at != own]
    works = [dist.irecv(into[at], group=among, group_src=at) for at in others if len(into[at])]
    works += [dist.isend(sent[at], group=among, group_dst=at) for at in others if len(sent[at])]
    for work in works:
        assert work is not None  # they are in the same group
        work.wait()


class Moving:
    """A tensor on its way."""

    own: Tensor  # the part that this rank adds up

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.parts = parts  # of it, for each worker of this node: (n_p,)
        self.done: Future[None] = Future()

    def wait(self) -> None:
        self.done.result()
