"""How many GPUs a process of this machine sees, found without torch."""

import itertools
import os
from pathlib import Path


def count() -> int:
    """Those of CUDA_VISIBLE_DEVICES where it is set, else all that the driver shows."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return len(list(itertools.takewhile(lambda name: name not in ("", "-1"), names)))
    return sum(1 for _ in Path("/proc/driver/nvidia/gpus").glob("*"))
