"""Send gradients as bfloat16: half the bytes, the range of float32, 8 significant bits.

Nothing overflows that would not overflow in float32. D. Kalamkar et al., "A study of BFLOAT16 for
deep learning training", 2019.
"""

import torch

from .base import Cast


class Bf16(Cast):
    """One all_reduce of each bucket (n,), in half the bytes."""

    dtype = torch.bfloat16


build = Bf16
