"""A sharded bucket sends gradients to the shards' ranks, and updated shards to all ranks.

One gradient is missing on all ranks and one on some; one has another order in memory, and one is
sparse.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.train.workers import results_of
from train.sync.ranks import Ranks
from train.sync.sharding import bucket as bucket_module
from train.sync.sharding.bucket import ShardedBucket

NEVER, RARE, SPARSE = 3, 4, 5  # indices into `values()`


def values() -> list[Tensor]:
    """Return values in every memory layout, alike on all ranks; some have fewer rows than ranks."""
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
    """Return a rank's gradients, whose memory order differs from the parameters'."""
    torch.manual_seed(1 + rank)
    shapes = [tensor.shape[::-1] for tensor in values()]
    gradients: list[Any] = [
        torch.randn(shape).permute([*range(len(shape))][::-1]) for shape in shapes
    ]
    gradients[NEVER] = None
    gradients[SPARSE] = gradients[SPARSE].to_sparse()
    gradients[RARE] = gradients[RARE] if rank == 0 else None
    return gradients


def several(ranks: Ranks, group: dist.ProcessGroup) -> None:
    """Check that parts get their mean gradients and, once updated, become whole on every rank."""
    bucket = ShardedBucket([nn.Parameter(tensor) for tensor in values()], ranks, group)
    every = [gradients_of(rank) for rank in range(ranks.world_size)]
    assert sum(len(shard.part) for shard in bucket.shards) <= -(-230 // ranks.world_size)
    for shard, whole, param in zip(bucket.shards, values(), bucket.params, strict=True):
        assert torch.equal(shard.gathered(shard.part), whole)
        assert shard.gathered(shard.part).stride() == param.stride()
    for param, gradient in zip(bucket.params, every[ranks.rank], strict=True):
        param.grad = gradient
    bucket.reduce()
    assert bucket.had_gradient == [gradient is not None for gradient in every[ranks.rank]]
    assert all(param.grad is None for param in bucket.params)
    bucket.wait()
    bucket.set_gradients([index != NEVER for index in range(len(every[0]))])
    assert bucket.shards[NEVER].part.grad is None
    stepped = values()
    for index, shard in enumerate(bucket.shards):
        if shard.part.grad is not None:
            zeros = torch.zeros(shard.layout.shape)
            gradients = [zeros if row[index] is None else row[index] for row in every]
            stepped[index] = torch.stack([tensor.to_dense() for tensor in gradients]).mean(0)
            torch.testing.assert_close(shard.gathered(shard.part.grad), stepped[index])
            shard.part.data.copy_(shard.part.grad)
    bucket.gather()
    bucket.finish()
    torch.testing.assert_close([param.detach() for param in bucket.params], stepped)


def alone(ranks: Ranks, group: dist.ProcessGroup) -> None:
    """Check that a gradient that divides evenly is sent, and its parameter gathered, uncopied."""
    param = nn.Parameter(torch.zeros(4 * ranks.world_size, 6))
    bucket = ShardedBucket([param], ranks, group)
    param.grad = torch.randn_like(param)
    address = param.grad.data_ptr()
    assert bucket.reduce().data_ptr() == address
    bucket.wait()
    bucket.set_gradients([True])
    bucket.shards[0].part.data.fill_(ranks.rank)
    assert bucket.gather().data_ptr() == bucket.shards[0].part.data_ptr()
    bucket.finish()
    assert torch.equal(param[::4, 0], torch.arange(ranks.world_size).float())


def work(ranks: Ranks) -> None:
    group = ranks.own_group(timeout_s=300)
    several(ranks, group)
    alone(ranks, group)


def as_nccl_sends(ranks: Ranks) -> None:
    """Do the same through reduce_scatter, which gloo also supports."""
    bucket_module.backend_of = lambda device, group: "nccl"
    work(ranks)
    assert "reduce_scatter" in ranks.ledger.gradients and not ranks.ledger.gradients["all_to_all"]


def test_bucket_on_nccl_is_reduced_to_the_same_mean(tmp_path):
    results_of(as_nccl_sends, 3, tmp_path)


@pytest.mark.parametrize(
    "count", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 4))]
)
def test_bucket_reduces_gradients_to_the_mean_and_gathers_updated_shards(count, tmp_path):
    results_of(work, count, tmp_path)
