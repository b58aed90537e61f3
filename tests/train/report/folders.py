"""Run folders in their real form, made of numbers with which a test can calculate."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from muster.run_files import METRICS, RANK_END
from muster.writing import write_json
from train.records.schema import (
    CheckpointRecord,
    CollectivesRecord,
    EvalRecord,
    SplitRecord,
    StepRecord,
    TrafficRecord,
)  # fmt: skip
from train.report.data.subject import Subject, read_subject

START_S = 1_800_000_000.0
SECONDS = {"data_s": 0.001, "forward_s": 0.03, "backward_s": 0.04, "sync_s": 0.02}
SECONDS |= {"optimizer_s": 0.005}
ENVIRONMENT = {
    "host": "node0", "commit": "36b7e83412d5600c199cd745d8ebaa8fc02e3fd6", "dirty": False,
    "python": "3.11.7", "packages": {"torch": "2.13.0"}, "cpu": "A processor", "cores": 4,
    "memory_bytes": 2**34, "gpus": [], "gloo_interface": "eth0",
    "interfaces": {"eth0": {"mtu_bytes": 1500, "speed_mbit": 1000}},
}  # fmt: skip


def step(number: int, rank: int = 0, **changes: Any) -> dict[str, Any]:
    values = {"step": number, "epoch": 1 + (number - 1) // 10, "rank": rank, "loss": 1.0 / number}
    values |= {"samples": 64, "local_samples": 16, "lr": 0.1, "grad_norm": 1.0, **SECONDS}
    values |= {"step_s": 0.1 if number > 1 else 5.0, "payload_bytes": 40_000_000}
    return asdict(StepRecord(**(values | changes)))


def evaluation(number: int, **metrics: float) -> dict[str, Any]:
    counts = {"step": number, "epoch": number // 10, "samples": 100, "local_samples": 25}
    return asdict(EvalRecord(**counts, rank=0, eval_s=0.5, metrics=metrics))


def split(number: int, parts: list[int], gain: float) -> dict[str, Any]:
    return asdict(SplitRecord(step=number, rank=0, parts=parts, predicted_gain=gain))


def checkpoint(number: int, stall_s: float) -> dict[str, Any]:
    what = {"path": "checkpoints", "payload_bytes": 1000, "write_s": 0.1, "error": ""}
    return asdict(CheckpointRecord(step=number, rank=0, stall_s=stall_s, **what))


def collectives() -> dict[str, Any]:
    made = [("all_reduce", [1000, 1000], "float32", 4_000_000, "")]
    return asdict(CollectivesRecord(step=1, rank=0, collectives=made))


def traffic(epoch: int, rank: int = 0, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"step": 10 * epoch, "epoch": epoch, "rank": rank, "steps": 10}
    values |= {"host": f"node{rank}", "interface": "eth0", "seconds": 1.0, "note": ""}
    for way, observed in (("sent", 105_000_000), ("received", 110_000_000)):
        values |= {f"payload_{way}_bytes": 99_000_000, f"control_{way}_bytes": 1_000_000}
        values |= {f"wire_bytes_{way}": 104_000_000, f"observed_{way}_bytes": observed}
    return asdict(TrafficRecord(**(values | {"packet_bytes": 1500} | changes)))


def make_run(
    path: Path,
    *,
    sync: str = "ddp",
    workers: int = 2,
    steps: int = 20,
    step_s: float = 0.1,
    rows: list[dict[str, Any]] | dict[int, list[dict[str, Any]]] | None = None,
    more: list[dict[str, Any]] | None = None,
    end: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Make a run, finished unless `end` says otherwise; `rows` are records, for all or by rank."""
    settings = {"task": "quickstart", "batch_size": 64, "precision": "fp32", "seed": 42}
    path.mkdir(parents=True)
    text = yaml.safe_dump(settings | {"sync": sync, "epochs": 2} | config)
    (path / "config.yaml").write_text(text, encoding="utf-8")
    nodes = [{"host": f"node{number}", "argv": []} for number in range(workers)]
    command = f"python launch/submit.py --sync {sync} --nodes {workers}"
    write_json(path / "launch.json", {"command": command, "run_id": path.name, "nodes": nodes})
    write_json(path / "job.json", {"launcher": "local", "started_unix_s": START_S})
    write_json(path / "environment" / "node0.json", ENVIRONMENT)
    for rank in range(workers):
        own = [
            step(number, rank, local_samples=64 // workers, step_s=step_s if number > 1 else 5.0)
            for number in range(1, steps + 1)
        ]
        records = own if rows is None else rows if isinstance(rows, list) else rows.get(rank)
        if records is not None:
            write_records(path, rank, records + (more or [] if rank == 0 else []))
        ended = {"rank": rank, "host": f"node{rank}", "time_unix_s": START_S + 60}
        write_json(RANK_END.path(path, rank=rank), ended | {"code": 0, "cause": "done"})
    if end is None:
        write_json(path / "summary.json", {"sync": sync, "world_size": workers})
        end = {"code": 0, "message": "", "time_unix_s": START_S + 61}
    if end:
        write_json(path / "exit.json", end)
    return path


def subject_of(path: Path, *runs: dict[str, Any], **named: dict[str, Any]) -> Subject:
    """Make runs with these arguments of `make_run`; return the subject of their report."""
    every = {f"run{number}": one for number, one in enumerate(runs)} | named
    return read_subject([make_run(path / name, **raw) for name, raw in every.items()])


def write_records(path: Path, rank: int, records: list[dict[str, Any]]) -> None:
    file = METRICS.path(path, rank=rank)
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")


def make_study(path: Path, cells: list[dict[str, Any]], **more: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    study = {"name": "quick", "title": "A quick study", "about": "All modes.", "cells": cells}
    study |= {"command": "python launch/study.py configs/studies/quick.yaml"}
    write_json(path / "study.json", study | more)
    return path


def cell(name: str, **changes: Any) -> dict[str, Any]:
    values = {"id": name, "settings": {}, "nodes": 2, "repeat": 0, "run_dir": f"runs/{name}"}
    return values | {"state": "done", "seconds": 3.0, "message": ""} | changes
