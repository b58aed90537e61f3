"""A bucket's gradients go to the ranks whose parts they are, and the parts to all ranks.

A gradient is missing on all ranks, one on some, one lies otherwise in memory, one is sparse.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.train.workers import results_of
from train.sync.ranks import Ranks
from train.sync.sharding.bucket import Bucket

NEVER, RARE, SPARSE = 3, 4, 5  # of the values


def values() -> list[Tensor]:
    """Of parameters in every form in memory; alike on all ranks, which are more than some have."""
    torch.manual_seed(0)
    rows = [torch.randn(()), torch.randn(2), torch.randn(0, 3), torch.randn(4, 2), torch.randn(2)]
    return [
        *rows,
        torch.randn(6, 4),
        torch.randn(5, 3),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(7, 4).t(),
        torch.randn(6, 8)[:, :5],  # with gaps
    ]


def gradients_of(rank: int) -> list[Tensor | None]:
    """In another order of memory than the parameters."""
    torch.manual_seed(1 + rank)
    shapes = [one.shape[::-1] for one in values()]
    found: list[Any] = [torch.randn(one).permute([*range(len(one))][::-1]) for one in shapes]
    found[NEVER], found[SPARSE] = None, found[SPARSE].to_sparse()
    found[RARE] = found[RARE] if rank == 0 else None
    return found


def several(ranks: Ranks, group: dist.ProcessGroup) -> None:
    """Parts get the means of their gradients; stepped, they are the whole on every rank again."""
    bucket = Bucket([nn.Parameter(one) for one in values()], ranks, group)
    every = [gradients_of(rank) for rank in range(ranks.world_size)]
    assert sum(len(share.part) for share in bucket.shares) <= -(-230 // ranks.world_size)
    for share, whole, param in zip(bucket.shares, values(), bucket.params, strict=True):
        assert torch.equal(share.whole(share.part), whole)
        assert share.whole(share.part).stride() == param.stride()
    for param, gradient in zip(bucket.params, every[ranks.rank], strict=True):
        param.grad = gradient
    bucket.reduce()
    assert bucket.had == [one is not None for one in every[ranks.rank]]
    assert all(param.grad is None for param in bucket.params)
    bucket.wait()
    bucket.give([at != NEVER for at in range(len(every[0]))])
    assert bucket.shares[NEVER].part.grad is None
    stepped = values()
    for at, share in enumerate(bucket.shares):
        if share.part.grad is not None:
            own = [torch.zeros(share.form.shape) if one[at] is None else one[at] for one in every]
            stepped[at] = torch.stack([one.to_dense() for one in own]).mean(0)
            torch.testing.assert_close(share.whole(share.part.grad), stepped[at])
            share.part.data.copy_(share.part.grad)
    bucket.gather()
    bucket.finish()
    torch.testing.assert_close([param.detach() for param in bucket.params], stepped)


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


def work(ranks: Ranks) -> None:
    group = ranks.own_group(timeout_s=300)
    several(ranks, group)
    alone(ranks, group)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranks_get_the_means_of_their_parts_and_tell_all_what_becomes_of_them(count, tmp_path):
    results_of(work, count, tmp_path)
