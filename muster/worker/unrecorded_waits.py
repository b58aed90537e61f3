"""Where the main thread waits for other ranks without a collective that torch has recorded.

With TORCH_DISTRIBUTED_DEBUG=DETAIL torch first waits for all ranks, then records the collective:
until then only the stack shows it. In `init_process_group` there is no group yet.

This file is loaded into every worker by its path, needs the standard library alone, of Python 3.8
or newer, and loads no torch itself.
"""

from __future__ import annotations

import os
import sys
import time
from types import FrameType

TYPE_CHECKING = False  # without `typing`, which takes long to import
if TYPE_CHECKING:
    from typing import Any

C10D = "torch/distributed/distributed_c10d.py"
OPERATIONS = frozenset(
    "all_reduce all_reduce_coalesced broadcast reduce all_gather all_gather_coalesced "
    "all_gather_into_tensor gather scatter reduce_scatter reduce_scatter_tensor all_to_all "
    "all_to_all_single barrier".split()
)
# The innermost Python frame of DDP while its C++ code waits: a file of torch, and a function.
OF_DDP = (
    ("torch/autograd/graph.py", "_engine_run_backward"),
    ("torch/nn/parallel/distributed.py", ""),
    ("torch/distributed/utils.py", ""),
)


def collective(
    frame: FrameType | None, begun: dict[str, Any], for_s: float | None
) -> dict[str, Any] | None:
    """The collective in which `frame`, the innermost, waits; see `flight_recorder.collectives`.

    `begun`: the number of the last one that has begun in each group, by the group's name.
    """
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() != "DETAIL" or frame is None:
        return None
    file = frame.f_code.co_filename
    function = frame.f_code.co_name
    operation = "collective"
    group = "0"
    shapes: list[list[int]] = []
    types: list[str] = []
    if file.endswith(C10D) and function in OPERATIONS:
        operation = function
        group = _name_of(frame.f_locals.get("group"))
        tensor: Any = frame.f_locals.get("tensor")
        if hasattr(tensor, "shape"):
            shapes = [list(tensor.shape)]
            types = [str(getattr(tensor, "dtype", ""))]
    elif not any(file.endswith(of) and name in ("", function) for of, name in OF_DDP):
        return None
    if begun.get(group, -1) < 0:
        return None
    return {
        "group": group,
        "description": "default_pg" if group == "0" else "",
        "number": begun[group] + 1,
        "operation": operation,
        "shapes": shapes,
        "types": types,
        "waits": True,
        "begun_unix_s": time.time() - (for_s or 0.0),
        "age_s": for_s or 0.0,
        "limit_s": 0.0,  # not known
    }


def meeting(frames: list[FrameType]) -> dict[str, Any] | None:
    """What `init_process_group` waits for, if one of `frames`, outermost first, is its frame."""
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


def _name_of(group: Any) -> str:
    """torch's name for a group; "0" is the default one."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    try:
        return str(world.pg_names.get(group, "0"))  # type: ignore[union-attr]
    except Exception:  # noqa: BLE001 (private to torch)
        return "0"
