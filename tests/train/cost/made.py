"""Run folders and a bench as real ones leave them, with numbers that are known."""

import json
from pathlib import Path
from typing import Any

import yaml

from muster.run_files import METRICS
from train.cost.algorithms import MEASURED, Link

SIZES = tuple(1024 * 4**power for power in range(9))
LINK = Link(alpha_s=100e-6, bytes_per_s=117e6)


def bench(
    workers: int = 4, link: Link = LINK, operations: tuple[str, ...] = tuple(MEASURED)
) -> dict[str, Any]:
    """A collectives.json of links that do exactly what the model says."""
    rows = [
        {
            "name": name,
            "bytes": size,
            "time_us": MEASURED[name](size, workers).seconds(link) * 1e6,
            "time_us_min": MEASURED[name](size, workers).seconds(link) * 1e6,
        }
        for name in operations
        for size in SIZES
    ]
    return {
        "hosts": [f"node{rank}" for rank in range(workers)],
        "nodes": list(range(workers)),
        "backend": "gloo",
        "links": {"node0": {"interface": "exp0", "mtu_bytes": 1500, "speed_mbit": 1000}},
        "collectives": rows,
    }


def step(**values: Any) -> dict[str, Any]:
    """A step record; what is not given is plain."""
    record = {
        "step": 1, "epoch": 1, "rank": 0, "loss": 1.0, "samples": 16, "local_samples": 4,
        "data_s": 0.001, "forward_s": 0.04, "backward_s": 0.08, "sync_s": 0.5,
        "optimizer_s": 0.01, "step_s": 0.631, "lr": 0.1, "grad_norm": 1.0,
        "payload_bytes": 40_000_000, "kind": "step",
    }  # fmt: skip
    return {**record, **values}


def run(
    folder: Path,
    mode: str,
    workers: int,
    steps: int = 4,
    slow_s: float = 0.0,
    spread_s: float = 0.0,
    **values: Any,
) -> Path:
    """A run folder; rank 0 computes `slow_s` longer, for which the others wait in the sync.

    With ddp they wait in the backward pass. Steps differ by `spread_s` from the mean.
    """
    payload = 40_000_000 * {"gather_scatter": 2, "single": 0}.get(mode, 1)
    settings = {
        "task": "synthetic", "sync": mode, "batch_size": 16, "precision": "fp32",
        "bucket_mb": 25.0, "accumulation": 1, "split": "even", "model": None,
    }  # fmt: skip
    settings |= {name: values.pop(name) for name in list(values) if name in settings}
    (folder / "metrics").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    (folder / "summary.json").write_text(json.dumps({"world_size": workers}))
    for rank in range(workers):
        records = [
            step(
                **{
                    "step": number,
                    "rank": rank,
                    "samples": settings["batch_size"],
                    "local_samples": settings["batch_size"] // workers,
                    "payload_bytes": payload,
                    **values,
                }
            )
            for number in range(1, steps + 1)
        ]
        records[0]["step_s"] = 99.0  # the first step pays for much else
        for record in records:
            record["forward_s"] += slow_s if rank == 0 else 0.0
            waiting = ("backward_s", "comm_s") if mode == "ddp" else ("sync_s",)
            for name in waiting if slow_s and rank else ():
                record[name] = record.get(name, 0.0) + slow_s
            if slow_s and mode == "ddp":
                record |= {"comm_s": record.get("comm_s", 0.0) + 0.05, "overlapped_s": 0.05}
            record["step_s"] += slow_s + spread_s * (record["step"] % 3 - 1)
        text = "".join(json.dumps(record) + "\n" for record in records)
        METRICS.path(folder, rank=rank).write_text(text)
    return folder
