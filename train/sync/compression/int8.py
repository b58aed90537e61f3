"""Send gradients as 8-bit integers with a scale per 1024 values; remember the rounding error.

Each rank receives its part of the values from all others, averages it, and sends the mean to all: a
reduce-scatter and an all-gather, each with a quarter of the bytes of float32.

The rounding error is added to the next step's gradient. This is error feedback: F. Seide et al.,
"1-bit stochastic gradient descent", Interspeech 2014. Rounding and correcting both directions is
from H. Tang et al., "DoubleSqueeze", ICML 2019.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from ..ranks import flatten, unflatten
from .base import Compressor, Named

CHUNK = 1024  # values that share a scale
LARGEST = 127
SCALE = torch.float32


class Int8(Compressor):
    """A bucket (n,) has one all_to_all and one all_gather; it is padded to (world_size, part)."""

    def compress(self, gradients: Named) -> None:
        flat = flatten(self.with_error(gradients))
        ranks = self.ranks.world_size
        part = -(-len(flat) // (ranks * CHUNK)) * CHUNK  # values that each rank averages
        # (n,) padded with zeros, as (ranks, part): row r goes to rank r
        padded = functional.pad(flat, (0, ranks * part - len(flat))).view(ranks, part)
        sent = quantise(padded)
        error = padded - dequantise(sent, flat.dtype)
        received = torch.empty_like(sent)  # this rank's part, from each rank
        self.thread.ranks.note("all_to_all", sent)
        dist.all_to_all_single(received, sent, group=self.thread.ranks.group)
        mean = dequantise(received, flat.dtype).sum(0) / ranks  # (part,)
        row = quantise(mean[None])
        # This rank also remembers the error of rounding the mean, as if its own gradient lacked it.
        error[self.ranks.rank] += ranks * (mean - dequantise(row, flat.dtype)[0])
        self.keep_error(gradients, error.view(-1)[: len(flat)])
        means = dequantise(self.thread.ranks.all_gather(row[0]), flat.dtype)
        unflatten(means.view(-1)[: len(flat)], list(gradients.values()))


def quantise(rows: Tensor) -> Tensor:
    """Rows (n, part) as bytes: `part` integers, then a scale per chunk.

    `part` is a multiple of the chunk size. A NaN or infinite value makes its chunk's scale so.
    """
    chunks = rows.view(len(rows), -1, CHUNK)
    largest = chunks.abs().amax(2).to(SCALE)
    scales = (largest / LARGEST).clamp(min=torch.finfo(SCALE).tiny)
    integers = (chunks / scales[..., None]).round().clamp(-LARGEST, LARGEST).to(torch.int8)
    return torch.cat([integers.flatten(1).view(torch.uint8), scales.view(torch.uint8)], 1)


def dequantise(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The values, nearly, that `quantise` turned into bytes: (n, part) of `dtype`."""
    chunks = rows.shape[1] // (CHUNK + SCALE.itemsize)
    integers, scales = rows.split([chunks * CHUNK, chunks * SCALE.itemsize], 1)
    steps = integers.view(torch.int8).view(len(rows), chunks, CHUNK).to(dtype)
    values: Tensor = steps * scales.contiguous().view(SCALE)[..., None].to(dtype)
    return values.flatten(1)


build = Int8
