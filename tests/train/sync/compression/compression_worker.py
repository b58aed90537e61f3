"""Workers average random gradients with every compressor, and check that all have the same bits."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from configs import plugins
from train.sync.base import SyncOptions
from train.sync.compression.base import Compressor
from train.sync.ddp.data_parallel import HookChoice
from train.sync.ddp.hooks import BucketHook
from train.sync.ranks import Ranks, flatten, unflatten

COMPRESSORS = plugins.names("train.sync.compression")
STEPS = 12
RANK = 2
SHAPES = [(40, 30), (7,), (16, 3, 3, 8), (2, 2), (1200,)]  # PowerSGD takes the first and third


class Holder(nn.Module):
    """A model that has parameters of these shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.held = nn.ParameterList([torch.zeros(shape) for shape in SHAPES])


NAMES = [name for name, _ in Holder().named_parameters()]


def make(compressor: str, ranks: Ranks, **flags: Any) -> BucketHook:
    options = SyncOptions(compress=compressor, **{"compress_rank": RANK, **flags})
    kind = HookChoice.of(None, options).hook_class
    assert kind is not None
    return kind(Holder(), ranks, options)


def gradients(ranks: Ranks, step: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Of this rank: noise around what all ranks see, as gradients are."""
    shared = torch.Generator().manual_seed(1)
    local = torch.Generator().manual_seed(1000 * (step + 1) + ranks.rank)
    return [
        (torch.randn(shape, generator=shared) + torch.randn(shape, generator=local)).to(dtype)
        for shape in SHAPES
    ]


def exact_mean(tensor: Tensor) -> Tensor:
    total = tensor.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def averaged(hook: BucketHook, tensors: list[Tensor], names: Sequence[str] = NAMES) -> Tensor:
    """The averages of `tensors`, gradients of `names`; all ranks have the same bits."""
    if isinstance(hook, Compressor):
        hook.average_named(dict(zip(names, tensors, strict=True)))
    else:
        unflatten(hook.start(flatten(tensors)).wait(), tensors)
    flat = flatten(tensors)
    rows = hook.ranks.all_gather(flat)
    # compared as bytes, since NaN does not equal itself
    same = rows.view(torch.uint8) == flat.view(torch.uint8)
    assert same.all(), f"{hook.options.compress}: ranks differ"
    return flat


def remembered(hook: BucketHook) -> Tensor:
    """The mean of what ranks remember."""
    state = hook.state()
    errors = [
        state.get(f"{hook.options.compress}/error/{name}", torch.zeros(shape, dtype=torch.float64))
        for name, shape in zip(NAMES, SHAPES, strict=True)
    ]
    return exact_mean(flatten(errors))


def sums_over_steps(compressor: str, ranks: Ranks, case: str = "") -> dict[str, Tensor]:
    """Sums over steps: of the results, of the true means, and of what is still remembered.

    `case` "unused": DDP discards the result of a parameter that no rank has used; the first is
    used in every third step, the last of them on the first rank alone. "other buckets": they change
    after the first step, as DDP's do.
    """
    hook = make(compressor, ranks)
    total = exact = torch.zeros(sum(map(torch.Size.numel, map(torch.Size, SHAPES))))
    firsts = []
    for step in range(STEPS):
        tensors = gradients(ranks, step)
        if thrown_away := case == "unused" and step % 3 > 0:
            tensors[0].zero_()
        if case == "unused" and ranks.rank:
            tensors[-1].zero_()
        mean = exact_mean(flatten(tensors))
        if case == "other buckets" and step:
            averaged(hook, tensors[3:], NAMES[3:])
            averaged(hook, tensors[2::-1], NAMES[2::-1])
        else:
            averaged(hook, tensors)
        if thrown_away:
            tensors[0].zero_()
        firsts.append(torch.stack([flatten(tensors), mean]))
        total = total + flatten(tensors)
        exact = exact + mean
    return {
        "averaged": total,
        "exact": exact,
        "remembered": remembered(hook),
        "first step": firsts[0],
    }


def after_an_overflow(compressor: str, ranks: Ranks) -> bool:
    """Whether the steps after one with infinite values are as if it had not been."""
    hook = make(compressor, ranks)
    other = make(compressor, ranks)
    for each in (hook, other):
        averaged(each, gradients(ranks, 0))
    broken = gradients(ranks, 1)
    if ranks.rank == 0:
        broken[0][0, 0] = torch.inf
        broken[-1][-1] = -torch.inf
    averaged(hook, broken)
    return all(
        torch.equal(averaged(hook, gradients(ranks, step)), averaged(other, gradients(ranks, step)))
        for step in (2, 3)
    )


def moved(compressor: str, ranks: Ranks) -> dict[str, int]:
    """Bytes handed over by operation, for one step in float32."""
    ranks.ledger.gradients.clear()
    averaged(make(compressor, ranks), gradients(ranks, 0, torch.float32))
    return dict(ranks.ledger.gradients)


def low_rank(ranks: Ranks) -> None:
    """Matrices whose mean has the rank that PowerSGD sends are averaged exactly."""
    generator = torch.Generator().manual_seed(7)
    left = torch.randn(40, RANK, generator=generator, dtype=torch.float64)
    right = torch.randn(RANK, 30, generator=generator, dtype=torch.float64) * (1 + ranks.rank)
    tensors = [left @ right]
    exact = exact_mean(flatten(tensors))
    average = averaged(make("powersgd", ranks), tensors, NAMES[:1])
    torch.testing.assert_close(average, exact, rtol=1e-9, atol=1e-9)


def with_nan(compressor: str, ranks: Ranks) -> bool:
    """Whether the NaN of a single rank reaches all."""
    tensors = gradients(ranks, 0, torch.float32)
    if ranks.rank == ranks.world_size - 1:
        tensors[0][3, 3] = torch.nan
    return bool(averaged(make(compressor, ranks), tensors).isnan().any())


def work(ranks: Ranks) -> dict[str, Any]:
    low_rank(ranks)
    return {
        compressor: {
            **{
                case: sums_over_steps(compressor, ranks, case)
                for case in ("", "unused", "other buckets")
            },
            "moved": moved(compressor, ranks),
            "nan": with_nan(compressor, ranks),
            "overflow": after_an_overflow(compressor, ranks),
        }
        for compressor in COMPRESSORS
    }
