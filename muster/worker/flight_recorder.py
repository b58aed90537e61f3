"""The collectives of this process, from torch's flight recorder.

The names are private to torch: missing ones are left out. This file is loaded into every worker by
its path, needs the standard library alone, of Python 3.8 or newer, and loads no torch itself.
"""

from __future__ import annotations

import json
import sys
import time

TYPE_CHECKING = False  # without `typing`, which takes long to import
if TYPE_CHECKING:
    from typing import Any

ENTRIES = 50  # latest collectives of each group


def groups() -> dict[str, dict[str, Any]]:
    """torch's process groups by name: their ranks, and the last collective that began."""
    trace = _trace()
    by_name = _registered_groups()
    for name, status in trace.get("pg_status", {}).items():
        begun = int(status.get("last_enqueued_collective", -1))
        by_name.setdefault(name, {})["begun"] = begun
    return by_name


def collectives() -> list[dict[str, Any]]:
    """The latest collectives of each group, oldest first; `age_s` counts from their start."""
    trace = _trace()
    ended = {
        name: int(status.get("last_completed_collective", -1))
        for name, status in trace.get("pg_status", {}).items()
    }
    now = time.time()
    latest = []
    seen: dict[str, int] = {}
    for entry in reversed(trace.get("entries", [])):
        group, description = (*entry.get("process_group", ["", ""]), "")[:2]
        seen[group] = seen.get(group, 0) + 1
        if seen[group] > ENTRIES or entry.get("is_p2p"):
            continue
        number = int(entry.get("collective_seq_id", -1))
        latest.append(
            {
                "group": group,
                "description": description,
                "number": number,
                "operation": str(entry.get("profiling_name", "")).partition(":")[2],
                "shapes": entry.get("input_sizes", []),
                "types": entry.get("input_dtypes", []),
                # an entry of TORCH_DISTRIBUTED_DEBUG=DETAIL has no group: see unrecorded_waits.py
                "waits": bool(group) and not entry.get("retired") and number > ended.get(group, -1),
                "begun_unix_s": entry.get("time_created_ns", 0) / 1e9,
                "age_s": round(now - entry.get("time_created_ns", 0) / 1e9, 1),
                "limit_s": entry.get("timeout_ms", 0) / 1e3,
            }
        )
    return latest[::-1]


def _trace() -> dict[str, Any]:
    """The content of torch's flight recorder; empty if torch is not loaded."""
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return {}
    recorder = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
    try:
        return dict(json.loads(recorder())) if recorder is not None else {}
    except Exception:  # noqa: BLE001 (private to torch: any error means no answer)
        return {}


def _registered_groups() -> dict[str, dict[str, Any]]:
    module = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(module, "_world", None)
    ranks = getattr(world, "pg_group_ranks", {})
    names = getattr(world, "pg_names", {})
    return {
        str(name): {"ranks": sorted(ranks.get(group, {}))} for group, name in list(names.items())
    }
