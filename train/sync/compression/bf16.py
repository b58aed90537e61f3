"""Send gradients as bfloat16: half the bytes, the range of float32, 8 significant bits.

Nothing overflows that would not in float32.
"""

import torch

from .base import Cast


class Bf16(Cast):
    dtype = torch.bfloat16


build = Bf16
