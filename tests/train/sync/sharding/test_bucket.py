"""A bucket's gradients go to the ranks whose parts they are, and the parts to all ranks.

A gradient is missing on all ranks, one on some, one lies otherwise in memory, one is sparse.
"""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.train.workers import results_of
from train.sync.ranks import Ranks
from train.sync.sharding.bucket import Bucket

FORMS = [(3, 5), (4, 2), (7,), (6, 4), (2,)]
NEVER = 1  # of them


def ones() -> dict[str, Tensor]:
    torch.manual_seed(0)  # alike on all ranks
    return {
        "a number": torch.randn(()),
        "fewer values than ranks": torch.randn(2),
        "no value": torch.randn(0, 3),
        "uneven": torch.randn(5, 3),
        "even": torch.randn(4, 6),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "transposed": torch.randn(7, 4).t(),
        "with gaps": torch.randn(6, 8)[:, :5],
    }


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


def cut(ranks: Ranks) -> None:
    """The parts of all ranks are the parameter, and a step of a part is one of the parameter."""
    for before, (form, values) in itertools.product((0, 4), ones().items()):
        copy = torch.empty_strided(values.size(), values.stride()).copy_(values)
        bucket = Bucket([nn.Parameter(torch.zeros(before)), nn.Parameter(copy)], ranks)
        share = bucket.shares[-1]
        most = -(-(before + values.numel()) // ranks.world_size)
        assert len(share.part) <= most, form
        whole = share.whole(share.part)
        assert torch.equal(whole, values) and whole.stride() == share.form.stride(), form
        share.part.data.add_(1)
        changed = (bucket.params[1].detach() - values).sum()
        assert float(changed) == pytest.approx(len(share.part), abs=1e-4), form


def work(ranks: Ranks) -> None:
    cut(ranks)
    group = ranks.own_group(timeout_s=300)
    several(ranks, group)
    alone(ranks, group)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_ranks_get_the_means_of_their_parts_and_tell_all_what_becomes_of_them(count, tmp_path):
    results_of(work, count, tmp_path)
