"""Send gradients as 16-bit floats (IEEE half): half the bytes, 11 significant bits.

Values beyond 65,504 overflow, and values below 6e-8 vanish; use bf16 for these. The hook does the
same as torch's `fp16_compress_hook`.
"""

import torch

from .base import Cast


class Fp16(Cast):
    """One all_reduce of each bucket (n,), in half the bytes."""

    dtype = torch.float16


build = Fp16
