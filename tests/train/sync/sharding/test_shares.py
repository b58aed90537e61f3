"""Parameters are cut into equal parts and put together again, whatever their form."""

import pytest
import torch
from torch import nn

from train.sync.ranks import Ranks
from train.sync.sharding.shares import SharedBucket, ShareInPlace

FORMS = {
    "a number": torch.randn(()),
    "fewer values than ranks": torch.randn(2),
    "no value": torch.randn(0, 3),
    "uneven": torch.randn(5, 3),
    "even": torch.randn(4, 6),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": torch.randn(7, 4).t(),
    "with gaps": torch.randn(6, 8)[:, :5],
}


def shares(values: torch.Tensor, count: int) -> list[ShareInPlace]:
    """That parameter's share of each rank; every rank has a copy of it."""
    made = []
    for rank in range(count):
        copy = torch.empty_strided(values.size(), values.stride()).copy_(values)
        made.append(ShareInPlace(nn.Parameter(copy), Ranks(rank, count)))
    return made


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("values", FORMS.values(), ids=FORMS)
def test_the_parts_of_all_ranks_are_the_parameter(values, count):
    every = shares(values, count)
    assert sum(len(one.part) for one in every) == values.numel()
    assert max(len(one.part) for one in every) == -(-values.numel() // count)
    whole = every[0].whole(torch.stack([one.row(one.part.detach()) for one in every]))
    assert torch.equal(whole, values) and whole.stride() == every[0].param.stride()


@pytest.mark.parametrize("values", FORMS.values(), ids=FORMS)
def test_a_step_of_the_part_is_one_of_the_parameter(values):
    first, last = shares(values, 2)
    for share in (first, last):
        with torch.no_grad():
            share.part.add_(1)
    changed = sum((share.param.detach() - values).sum() for share in (first, last))
    assert float(changed) == pytest.approx(values.numel(), abs=1e-4)


@pytest.mark.parametrize("count", [2, 3])
def test_a_bucket_has_a_row_for_each_rank(count):
    """A gradient is missing, one lies otherwise in memory, one is sparse."""
    forms = [torch.zeros(3, 5), torch.zeros(4, 2), torch.zeros(7), torch.zeros(6, 4)]
    by_rank = [
        [ShareInPlace(nn.Parameter(one.clone()), Ranks(rank, count)) for one in forms]
        for rank in range(count)
    ]
    gradients = [torch.randn(5, 3).t(), None, torch.randn(7), torch.randn(6, 4).to_sparse()]
    flats = []
    for rank, own in enumerate(by_rank):
        bucket = SharedBucket([share.param for share in own], own)
        for share, gradient in zip(own, gradients, strict=True):
            share.param.grad = gradient
        bucket.take()
        assert bucket.had == [True, False, True, True]
        assert all(share.param.grad is None for share in own)
        flats.append(bucket.flat)
        bucket.mean = bucket.flat[rank]
        bucket.let_go()
        bucket.give_back([True, False, True, True])
        assert [share.part.grad is None for share in own] == [False, True, False, False]
    assert all(torch.equal(flat, flats[0]) for flat in flats)
    for at, gradient in enumerate(gradients):
        if gradient is not None:
            rows = [own[at].row(own[at].part.grad) for own in by_rank]
            assert torch.equal(by_rank[0][at].whole(torch.stack(rows)), gradient.to_dense())


def test_a_gradient_alone_that_divides_evenly_is_sent_from_where_it_is():
    share = ShareInPlace(nn.Parameter(torch.zeros(4, 6)), Ranks(1, 2))
    bucket = SharedBucket([share.param], [share])
    share.param.grad = torch.randn(4, 6)
    address = share.param.grad.data_ptr()
    bucket.take()
    assert bucket.flat.data_ptr() == address and bucket.flat.shape == (2, 12)
