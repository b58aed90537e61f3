"""Each parameter is cut into parts and put together again, whatever its form and its place."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from train.sync.ranks import Ranks
from train.sync.sharding.bucket import Bucket
from train.sync.sharding.parts import Share

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


@dataclass(frozen=True)
class Together(Ranks):
    """Each rank of one process; what all of them have is given before."""

    rows: tuple[torch.Tensor, ...] = ()

    def all_gather(self, row: torch.Tensor) -> torch.Tensor:
        lacking = [len(row) - len(own) for own in self.rows]
        return torch.stack(
            [nn.functional.pad(own, (0, n)) for own, n in zip(self.rows, lacking, strict=True)]
        )


def copy_of(values: torch.Tensor) -> nn.Parameter:
    copy = torch.empty_strided(values.size(), values.stride()).copy_(values)
    return nn.Parameter(copy)


def buckets(values: list[torch.Tensor], count: int) -> list[Bucket]:
    """One bucket of these parameters on each rank, which has copies of them."""
    return [Bucket([copy_of(one) for one in values], Ranks(rank, count)) for rank in range(count)]


def put_together(shares: list[Share], parts: list[torch.Tensor]) -> torch.Tensor:
    shares[0]._ranks = Together(0, len(shares), rows=tuple(parts))
    return shares[0].whole(parts[0])


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.parametrize("values", FORMS.values(), ids=FORMS)
def test_the_parts_of_all_ranks_are_the_parameter(values, before, count):
    every = [bucket.shares[-1] for bucket in buckets([torch.randn(before), values], count)]
    parts = [one.part.detach() for one in every]
    assert sum(map(len, parts)) == values.numel()
    assert max(map(len, parts)) <= -(-(before + values.numel()) // count)
    whole = put_together(every, parts)
    assert torch.equal(whole, values) and whole.stride() == every[0].form.stride()


@pytest.mark.parametrize("values", FORMS.values(), ids=FORMS)
def test_a_step_of_the_part_is_one_of_the_parameter(values):
    both = buckets([values], 2)
    for bucket in both:
        with torch.no_grad():
            bucket.shares[0].part.add_(1)
    changed = sum((bucket.params[0].detach() - values).sum() for bucket in both)
    assert float(changed) == pytest.approx(values.numel(), abs=1e-4)
