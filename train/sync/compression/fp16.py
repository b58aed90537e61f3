"""Send gradients as 16-bit floats (IEEE half): half the bytes, 11 significant bits.

Beyond 65,504 they overflow, below 6e-8 they vanish; see bf16 for those. It does what torch's
`fp16_compress_hook` does.
"""

import torch

from .base import Cast


class Fp16(Cast):
    """One all_reduce of a bucket (n,) in half the bytes."""

    dtype = torch.float16


build = Fp16
