"""Workers average made-up gradients in every way, and check that all hold the same bits."""

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

WAYS = plugins.names("train.sync.compression")
STEPS = 12
RANK = 2
SHAPES = [(40, 30), (7,), (16, 3, 3, 8), (2, 2), (1200,)]  # PowerSGD takes the first and third


class Holder(nn.Module):
    """A model that has parameters of these shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.held = nn.ParameterList([torch.zeros(shape) for shape in SHAPES])


NAMES = [name for name, _ in Holder().named_parameters()]


def make(way: str, ranks: Ranks, **flags: Any) -> BucketHook:
    options = SyncOptions(compress=way, **{"compress_rank": RANK, **flags})
    kind = HookChoice.of(None, options).hook_class
    assert kind is not None
    return kind(Holder(), ranks, options)


def gradients(ranks: Ranks, step: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Of this rank: noise around what all ranks see, as gradients are."""
    shared = torch.Generator().manual_seed(1)
    own = torch.Generator().manual_seed(1000 * (step + 1) + ranks.rank)
    return [
        (torch.randn(shape, generator=shared) + torch.randn(shape, generator=own)).to(dtype)
        for shape in SHAPES
    ]


def exact_mean(tensor: Tensor) -> Tensor:
    total = tensor.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def averaged(made: BucketHook, given: list[Tensor], names: Sequence[str] = NAMES) -> Tensor:
    """What becomes of `given`, gradients of `names`; all ranks have it bit for bit."""
    if isinstance(made, Compressor):
        made.average_named(dict(zip(names, given, strict=True)))
    else:
        unflatten(made.start(flatten(given)).wait(), given)
    flat = flatten(given)
    rows = made.ranks.all_gather(flat)
    # as bytes: what is no number does not equal itself
    same = rows.view(torch.uint8) == flat.view(torch.uint8)
    assert same.all(), f"{made.options.compress}: ranks differ"
    return flat


def held_back(made: BucketHook) -> Tensor:
    """What ranks remember, as the mean that it will once become."""
    state = made.state()
    errors = [
        state.get(f"{made.options.compress}/error/{name}", torch.zeros(shape, dtype=torch.float64))
        for name, shape in zip(NAMES, SHAPES, strict=True)
    ]
    return exact_mean(flatten(errors))


def over_steps(way: str, ranks: Ranks, of: str = "") -> dict[str, Tensor]:
    """Sums over steps: of what came out, of the true means, and of what is still held back.

    `of` "unused": DDP throws away what comes of a parameter that no rank has used; the first is
    used in every third step, the last of them on the first rank alone. "other buckets": they change
    after the first step, as DDP's do.
    """
    made = make(way, ranks)
    got = want = torch.zeros(sum(map(torch.Size.numel, map(torch.Size, SHAPES))))
    firsts = []
    for step in range(STEPS):
        given = gradients(ranks, step)
        if thrown_away := of == "unused" and step % 3 > 0:
            given[0].zero_()
        if of == "unused" and ranks.rank:
            given[-1].zero_()
        true = exact_mean(flatten(given))
        if of == "other buckets" and step:
            averaged(made, given[3:], NAMES[3:])
            averaged(made, given[2::-1], NAMES[2::-1])
        else:
            averaged(made, given)
        if thrown_away:
            given[0].zero_()
        firsts.append(torch.stack([flatten(given), true]))
        got, want = got + flatten(given), want + true
    return {"got": got, "want": want, "held back": held_back(made), "first": firsts[0]}


def after_an_overflow(way: str, ranks: Ranks) -> bool:
    """Whether the steps after one without numbers are as if that had not been."""
    one, other = make(way, ranks), make(way, ranks)
    for made in (one, other):
        averaged(made, gradients(ranks, 0))
    broken = gradients(ranks, 1)
    if ranks.rank == 0:
        broken[0][0, 0], broken[-1][-1] = torch.inf, -torch.inf
    averaged(one, broken)
    return all(
        torch.equal(averaged(one, gradients(ranks, step)), averaged(other, gradients(ranks, step)))
        for step in (2, 3)
    )


def moved(way: str, ranks: Ranks) -> dict[str, int]:
    """Bytes handed over by operation, for one step in float32."""
    ranks.ledger.gradients.clear()
    averaged(make(way, ranks), gradients(ranks, 0, torch.float32))
    return dict(ranks.ledger.gradients)


def low_rank(ranks: Ranks) -> None:
    """Matrices whose mean has the rank that PowerSGD sends are averaged exactly."""
    own = torch.Generator().manual_seed(7)
    left = torch.randn(40, RANK, generator=own, dtype=torch.float64)
    right = torch.randn(RANK, 30, generator=own, dtype=torch.float64) * (1 + ranks.rank)
    given = [left @ right]
    true = exact_mean(flatten(given))
    got = averaged(make("powersgd", ranks), given, NAMES[:1])
    torch.testing.assert_close(got, true, rtol=1e-9, atol=1e-9)


def with_nan(way: str, ranks: Ranks) -> bool:
    """Whether a single rank's lack of a number is seen by all."""
    given = gradients(ranks, 0, torch.float32)
    if ranks.rank == ranks.world_size - 1:
        given[0][3, 3] = torch.nan
    return bool(averaged(make(way, ranks), given).isnan().any())


def work(ranks: Ranks) -> dict[str, Any]:
    low_rank(ranks)
    return {
        way: {
            **{of: over_steps(way, ranks, of) for of in ("", "unused", "other buckets")},
            "moved": moved(way, ranks),
            "nan": with_nan(way, ranks),
            "overflow": after_an_overflow(way, ranks),
        }
        for way in WAYS
    }
