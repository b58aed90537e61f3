"""Send gradients as 16-bit floats (IEEE half): half the bytes, 11 significant bits.

Beyond 65,504 they overflow, below 6e-8 they vanish; see bf16 for those.
"""

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from .base import Cast


class Fp16(Cast):
    dtype = torch.float16
    torch_hook = fp16_compress_hook


build = Fp16
