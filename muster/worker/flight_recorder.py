"""The collectives of this process, from torch's flight recorders: gloo's and NCCL's.

The names used here are private to torch; missing ones are left out. This file is loaded into every
worker by its path, needs only the standard library of Python 3.8 or newer, and does not load torch.
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
    by_name = _registered_groups()
    for name, status in _statuses(_traces()).items():
        begun = int(status.get("last_enqueued_collective", -1))
        by_name.setdefault(name, dict(by_name.get(name.partition(" ")[0], {})))["begun"] = begun
    return by_name


def collectives() -> list[dict[str, Any]]:
    """The latest collectives of each group, oldest first; `age_s` counts from their start."""
    traces = _traces()
    statuses = _statuses(traces)
    ended = {
        name: int(status.get("last_completed_collective", -1)) for name, status in statuses.items()
    }
    entries = [(ending, entry) for ending, trace in traces for entry in trace.get("entries", [])]
    entries.sort(key=lambda item: item[1].get("time_created_ns", 0))
    now = time.time()
    latest = []
    seen: dict[str, int] = {}
    for ending, entry in reversed(entries):
        group, description = (*entry.get("process_group", ["", ""]), "")[:2]
        if f"{group}{ending}" in statuses:
            group = f"{group}{ending}"
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
                # an entry of TORCH_DISTRIBUTED_DEBUG=DETAIL has no group
                "waits": bool(group) and not entry.get("retired") and number > ended.get(group, -1),
                "begun_unix_s": entry.get("time_created_ns", 0) / 1e9,
                "age_s": round(now - entry.get("time_created_ns", 0) / 1e9, 1),
                "limit_s": entry.get("timeout_ms", 0) / 1e3,
            }
        )
    return latest[::-1]


def nearly_timed_out(before_s: float) -> dict[str, Any] | None:
    """A collective whose timeout makes NCCL abort this process within `before_s` seconds.

    A thread of NCCL's process group aborts it, without running any Python code of this process.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    recorder = getattr(c10d, "_dump_nccl_trace_json", None)
    if recorder is None or "torch.distributed.distributed_c10d" not in sys.modules:
        return None
    trace = _trace(lambda: recorder(includeCollectives=True, onlyActive=True))
    for entry in trace.get("entries", []):
        backend, _, operation = str(entry.get("profiling_name", "")).partition(":")
        age_s = time.time() - entry.get("time_created_ns", 0) / 1e9
        limit_s = entry.get("timeout_ms", 0) / 1e3
        waits = backend == "nccl" and not entry.get("retired") and limit_s > 0
        if waits and age_s > limit_s - min(before_s, limit_s / 2):
            return {"operation": operation, "limit_s": limit_s}
    return None


def _statuses(traces: list[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """How far each group has come, by name.

    A group for CPUs and GPUs ("cpu:gloo,cuda:nccl") counts its collectives twice, so it has a
    second name for the NCCL collectives.
    """
    statuses: dict[str, dict[str, Any]] = {}
    for ending, trace in traces:
        for name, status in trace.get("pg_status", {}).items():
            statuses[f"{name}{ending}" if name in statuses else name] = status
    return statuses


def _traces() -> list[tuple[str, dict[str, Any]]]:
    """The content of torch's recorders, each with the ending of a second name of its groups.

    In newer versions of torch, the first one has everything, and the second one repeats it.
    """
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return []
    c10d = sys.modules.get("torch._C._distributed_c10d")
    first = _trace(getattr(c10d, "_dump_fr_trace_json", None))
    names = [str(entry.get("profiling_name", "")) for entry in first.get("entries", [])]
    if any(name.startswith("nccl:") for name in names):
        return [("", first)]
    return [("", first), (" on nccl", _trace(getattr(c10d, "_dump_nccl_trace_json", None)))]


def _trace(recorder: Any) -> dict[str, Any]:
    """The content of a recorder; empty if torch has none."""
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
