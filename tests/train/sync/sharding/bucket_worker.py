"""One of N workers of one group that reduce and gather a bucket: `bucket_worker.py`.

A gradient is missing on all ranks, one on some, one lies otherwise in memory, one is sparse.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.loop.build import ranks_of
from train.sync.ranks import Ranks
from train.sync.sharding.bucket import Bucket
from train.worker import end_process

FORMS = [(3, 5), (4, 2), (7,), (6, 4), (2,)]
NEVER, SOME = 1, 4  # of them; rank 0 has a gradient of the latter


def gradients_of(rank: int) -> list[Tensor | None]:
    torch.manual_seed(rank)
    found: list[Tensor | None] = [torch.randn(5, 3).t(), None, torch.randn(7)]
    return [*found, torch.randn(6, 4).to_sparse(), torch.randn(2) if rank == 0 else None]


def dense(gradient: Tensor | None, form: tuple[int, ...]) -> Tensor:
    return torch.zeros(form) if gradient is None else gradient.to_dense()


def several(ranks: Ranks, group: dist.ProcessGroup) -> None:
    """Parts get the means of their gradients; stepped, they are the whole on every rank again."""
    bucket = Bucket([nn.Parameter(torch.zeros(form)) for form in FORMS], ranks, group)
    for param, gradient in zip(bucket.params, gradients_of(ranks.rank), strict=True):
        param.grad = gradient
    bucket.reduce()
    assert bucket.had == [True, False, True, True, ranks.rank == 0]
    assert all(param.grad is None for param in bucket.params)
    bucket.wait()
    bucket.give([at != NEVER for at in range(len(FORMS))])
    assert bucket.shares[NEVER].part.grad is None
    every = [gradients_of(rank) for rank in range(ranks.world_size)]
    means = [
        torch.stack([dense(own[at], form) for own in every]).mean(0)
        for at, form in enumerate(FORMS)
    ]
    for share, mean in zip(bucket.shares, means, strict=True):
        if share.part.grad is not None:
            torch.testing.assert_close(share.whole(share.part.grad), mean)
            share.part.data.copy_(share.part.grad)
    bucket.gather()
    bucket.finish()
    for param, mean in zip(bucket.params, means, strict=True):
        torch.testing.assert_close(param.detach(), mean)


def alone(ranks: Ranks, group: dist.ProcessGroup) -> None:
    """A gradient that divides evenly is sent from where it is, and its parameter gathered so."""
    param = nn.Parameter(torch.zeros(4 * ranks.world_size, 6))
    bucket = Bucket([param], ranks, group)
    param.grad = torch.randn_like(param)
    address = param.grad.data_ptr()
    assert bucket.reduce().data_ptr() == address
    bucket.wait()
    bucket.give([True])
    bucket.shares[0].part.data.fill_(ranks.rank)
    assert bucket.gather().data_ptr() == bucket.shares[0].part.data_ptr()
    bucket.finish()
    assert torch.equal(param[::4, 0], torch.arange(ranks.world_size).float())


def main() -> None:
    with rendezvous.meet(World.find(os.environ), Meeting("cpu", "gloo")) as peers:
        ranks = ranks_of(peers.world)
        group = ranks.own_group(timeout_s=300)
        several(ranks, group)
        alone(ranks, group)


if __name__ == "__main__":
    main()
    end_process(0)
