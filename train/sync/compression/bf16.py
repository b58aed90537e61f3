"""Send gradients as bfloat16: half the bytes, the range of float32, 8 significant bits.

Nothing overflows that would not in float32.
"""

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

from .base import Cast


class Bf16(Cast):
    dtype = torch.bfloat16
    torch_hook = bf16_compress_hook


build = Bf16
