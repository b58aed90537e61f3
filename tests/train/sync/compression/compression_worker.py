"""Ranks average random gradients with every compressor, and check that all have the same bits."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from configs import plugins
from train.sync.ddp.data_parallel import SyncedDataParallel, sync
from train.sync.ranks import Ranks, flatten

COMPRESSORS = plugins.names("train.sync.compression")
STEPS = 12
PLAIN_STEPS = 2  # of powersgd
RANK = 2
SHAPES = [(40, 30), (7,), (16, 3, 3, 8), (2, 2), (1200,)]  # PowerSGD takes the first and third


class Holder(nn.Module):
    """Parameters of these shapes, whose gradients are the values with which it is called."""

    def __init__(self, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.held = nn.ParameterList([torch.zeros(shape, dtype=dtype) for shape in shapes])

    def forward(self, gradients: list[Tensor]) -> Tensor:
        pairs = zip(self.held, gradients, strict=True)
        return torch.stack([(param * gradient).sum() for param, gradient in pairs]).sum()


def make(compressor: str, *shapes: tuple[int, ...], **more: Any) -> SyncedDataParallel:
    model = sync(Holder(*shapes, **more), compress=compressor, compress_rank=RANK)
    assert isinstance(model, SyncedDataParallel)
    return model


def gradients(ranks: Ranks, step: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Return this rank's gradients: as usual, noise around values that all ranks share."""
    shared = torch.Generator().manual_seed(1)
    local = torch.Generator().manual_seed(1000 * (step + 1) + ranks.rank)
    return [
        (torch.randn(shape, generator=shared) + torch.randn(shape, generator=local)).double()
        for shape in shapes
    ]


def exact_mean(tensor: Tensor) -> Tensor:
    total = tensor.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def averaged(model: SyncedDataParallel, tensors: list[Tensor], ranks: Ranks) -> Tensor:
    """Return the averages of `tensors`; check that all ranks have the same bits."""
    model.zero_grad()
    params = list(model.parameters())
    model([tensor.to(params[0].dtype) for tensor in tensors]).backward()
    flat = flatten([param.grad for param in params if param.grad is not None])
    rows = ranks.all_gather(flat)
    # compared as bytes, since NaN does not equal itself
    assert (rows.view(torch.uint8) == flat.view(torch.uint8)).all(), "ranks differ"
    return flat


def first_steps(compressor: str, ranks: Ranks) -> list[float]:
    """Return how far each step's averages are from the true means, relative to the means."""
    model = make(compressor, *SHAPES)
    gaps = []
    for step in range(PLAIN_STEPS + 1):
        tensors = gradients(ranks, step, *SHAPES)
        exact = exact_mean(flatten(tensors))
        gaps.append(float((averaged(model, tensors, ranks) - exact).norm() / exact.norm()))
    return gaps


def sums_over_steps(ranks: Ranks) -> dict[str, Tensor]:
    """Return sums over steps of powersgd's results and of the true means, and what is left over."""
    model = make("powersgd", SHAPES[0])
    total = exact = torch.zeros(1200)
    for step in range(STEPS):
        tensors = gradients(ranks, step, SHAPES[0])
        exact = exact + exact_mean(flatten(tensors))
        total = total + averaged(model, tensors, ranks)
    left = model.hook.state()[f"powersgd/{RANK}/error_dict/0"]
    return {"averaged": total, "exact": exact, "left": exact_mean(left)}


def moved(compressor: str, ranks: Ranks) -> dict[str, int]:
    """Return the bytes sent by each operation in the last of three steps in float32."""
    model = make(compressor, *SHAPES, dtype=torch.float32)
    for step in range(PLAIN_STEPS + 1):
        model.hook.ranks.ledger.gradients.clear()
        averaged(model, gradients(ranks, step, *SHAPES), ranks)
    return dict(model.hook.ranks.ledger.gradients)


def low_rank(ranks: Ranks) -> None:
    """Check that matrices whose mean has the rank that PowerSGD sends are averaged exactly."""
    generator = torch.Generator().manual_seed(7)
    left = torch.randn(40, RANK, generator=generator, dtype=torch.float64)
    right = torch.randn(RANK, 30, generator=generator, dtype=torch.float64) * (1 + ranks.rank)
    model = make("powersgd", SHAPES[0])
    for _ in range(PLAIN_STEPS + 1):
        average = averaged(model, [left @ right], ranks)
    torch.testing.assert_close(average, exact_mean(flatten([left @ right])), rtol=1e-6, atol=1e-6)


def with_nan(compressor: str, ranks: Ranks) -> bool:
    """Whether a single rank's NaN reaches all ranks; check that zeros do not become NaN."""
    model = make(compressor, *SHAPES)
    for step in range(PLAIN_STEPS + 1):
        averaged(model, gradients(ranks, step, *SHAPES), ranks)
    tensors = gradients(ranks, 9, *SHAPES)
    if ranks.rank == ranks.world_size - 1:
        tensors[0][3, 3] = torch.nan
    zeros = make(compressor, SHAPES[0])
    for _ in range(PLAIN_STEPS + 2):
        assert averaged(zeros, [torch.zeros(40, 30)], ranks).isfinite().all()
    return bool(averaged(model, tensors, ranks).isnan().any())


def work(ranks: Ranks) -> dict[str, Any]:
    low_rank(ranks)
    return {
        "sums": sums_over_steps(ranks),
        **{
            compressor: {
                "gaps": first_steps(compressor, ranks),
                "moved": moved(compressor, ranks),
                "nan": with_nan(compressor, ranks),
            }
            for compressor in COMPRESSORS
        },
    }
