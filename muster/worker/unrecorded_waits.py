"""A wait for other ranks that torch does not record: the wait in `init_process_group`.

There is no group yet, so only the main thread's stack shows the wait.

This file is loaded into every worker by its path, needs only the standard library of Python 3.8 or
newer, and does not load torch.
"""

from __future__ import annotations

import os
from types import FrameType

TYPE_CHECKING = False  # without `typing`, which takes long to import
if TYPE_CHECKING:
    from typing import Any


def init_call(frames: list[FrameType]) -> dict[str, Any] | None:
    """What `init_process_group` waits for, if its frame is among `frames`, outermost first."""
    names = [
        frame.f_code.co_name if "torch/distributed/" in frame.f_code.co_filename else ""
        for frame in frames
    ]
    if "init_process_group" not in names:
        return None
    call = frames[names.index("init_process_group")].f_locals
    store: dict[str, Any] = {}
    if names[-1] == "_create_c10d_store":  # in C++, which connects, or waits for the others
        store = frames[-1].f_locals
    numbers = {
        name: _whole(store.get(name), call.get(name), os.environ.get(name.upper()))
        for name in ("rank", "world_size")
    }
    by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return {
        **numbers,
        "store": f"{store['hostname']}:{store['port']}" if store else "",
        "serves": bool(store) and not by_launcher and numbers["rank"] == 0,
        "by_launcher": by_launcher,
        "method": str(call.get("init_method") or ""),
    }


def _whole(*values: Any) -> int | None:
    for value in values:
        try:
            if int(value) >= 0:
                return int(value)
        except (TypeError, ValueError):
            continue
    return None
