"""Send gradients as 8-bit integers with a scale per 1024 values, and remember what rounding took.

Each rank averages its part of the values, received from all others, and gives the mean to all: a
reduce-scatter and an all-gather, with a quarter of the bytes of float32 in both.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ..buckets.layout import flatten, spread
from .base import Compressor

CHUNK = 1024  # values that share a scale
LARGEST = 127
SCALE = torch.float32


class Int8(Compressor):
    def average(self, key: int, gradients: Sequence[Tensor]) -> None:
        flat = self.with_error(key, flatten(gradients))
        ranks = self.ranks.world_size
        part = -(-len(flat) // (ranks * CHUNK)) * CHUNK  # values that one rank averages
        # (n,) with zeros behind it, as (ranks, part): row r goes to rank r
        padded = functional.pad(flat, (0, ranks * part - len(flat))).view(ranks, part)
        sent = quantise(padded)
        self.remember(key, "error", (padded - dequantise(sent, flat.dtype)).view(-1)[: len(flat)])
        received = dequantise(self.all_to_all(sent), flat.dtype)  # (ranks, part): one part of all
        mean = self.with_error(key, received.sum(0) / ranks, "error of the mean")
        row = quantise(mean[None])
        self.remember(key, "error of the mean", mean - dequantise(row, flat.dtype)[0])
        means = dequantise(self.all_gather(row[0]), flat.dtype)
        spread(means.view(-1)[: len(flat)], gradients)


def quantise(rows: Tensor) -> Tensor:
    """Rows (n, part) as bytes: `part` integers, then a scale per chunk; `part` is whole chunks.

    What is no number stays none: the scale of its chunk is none either.
    """
    chunks = rows.view(len(rows), -1, CHUNK)
    largest = chunks.abs().amax(2).to(SCALE)
    scales = (largest / LARGEST).clamp(min=torch.finfo(SCALE).tiny)
    integers = (chunks / scales[..., None]).round().clamp(-LARGEST, LARGEST).to(torch.int8)
    return torch.cat([integers.flatten(1).view(torch.uint8), scales.view(torch.uint8)], 1)


def dequantise(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """What `quantise` made bytes of, nearly: (n, part) of `dtype`."""
    chunks = rows.shape[1] // (CHUNK + SCALE.itemsize)
    integers, scales = rows.split([chunks * CHUNK, chunks * SCALE.itemsize], 1)
    steps = integers.view(torch.int8).view(len(rows), chunks, CHUNK).to(dtype)
    values: Tensor = steps * scales.contiguous().view(SCALE)[..., None].to(dtype)
    return values.flatten(1)


build = Int8
