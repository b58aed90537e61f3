"""Studies of made-up run folders: one with a lot of everything, the courses', and HetSeq's."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from muster.checkout import CHECKOUT
from muster.writing import write_json
from tests.train.report.folders import (
    cell,
    checkpoint,
    collectives,
    evaluation,
    make_run,
    make_study,
    split,
    step,
    traffic,
)
from train.report.data import scaling
from train.report.data.subject import read_subject

# The workers of each mode.
MODES = {"single": 1, "gather_scatter": 4, "all_reduce": 4, "ddp": 5, "accelerate": 5}
LONG = "a-folder-with-a-name-as-long-as-some-are"
# As in the assignments: two modes with a collective per parameter, and unchanged ddp.
COURSES = {
    "single": {"sync": "single", "workers": 1, "step_s": 0.3, "bucket_mb": 25.0},
    "2a": {"sync": "gather_scatter", "workers": 4, "step_s": 0.6, "bucket_mb": 0.0},
    "2b": {"sync": "all_reduce", "workers": 4, "step_s": 0.2, "bucket_mb": 0.0},
    "3": {"sync": "ddp", "workers": 4, "step_s": 0.1, "bucket_mb": 25.0},
}


def full_study(path: Path) -> Path:
    """Make a study: all modes, each kind of record, long names, large and small numbers.

    It has two precisions, and cells that have failed or are waiting.
    """
    cells = [cell("lost", state="failed", message="<script>alert(1)</script>", run_dir="")]
    cells += [cell("later", state="waiting", run_dir="")]
    for number, (sync, workers) in enumerate(MODES.items()):
        name = f"{sync}-{LONG}"
        precision = ("fp32", "bf16")[number % 2]
        own = {"sync": sync, "precision": precision, "bucket_mb": 25 + number}
        cells.append(cell(name, nodes=workers, settings=own | {"network": "10.0.0.0/24"}))
        more = [evaluation(n, accuracy=n / 30, eval_loss=1e-9 * n) for n in (10, 20)]
        more += [traffic(0), traffic(1), collectives()]
        more += [split(10, [40, 24], 1.2), checkpoint(10, 0.002)]
        make_run(path / "runs" / name, workers=workers, step_s=3.7 / workers, more=more, **own)
    return make_study(path, cells)


def course_study(path: Path) -> Path:
    """Make a course's ten runs, as in configs/studies/cs744.yaml, each with all of its records."""
    study = yaml.safe_load((CHECKOUT / "configs/studies/cs744.yaml").read_text(encoding="utf-8"))
    texts = {name: study[name] for name in ("question", "implementation", "discussion")}
    more = [evaluation(20, accuracy=0.2345, eval_loss=2.3456)]
    more += [traffic(epoch) for epoch in (0, 1)]
    more += [collectives() | {"collectives": [("all_reduce", [9], "float32", 36, "")] * 34}]
    cells = []
    for name, sync in ((entry["name"], entry["sync"]) for entry in study["grid"]):
        for nodes in (1,) if sync == "single" else (2, 3, 4):
            folder = f"{sync}-{nodes}"
            settings = {"sync": sync, "bucket_mb": 0 if "2" in name else 25}
            cells.append(cell(folder, nodes=nodes, settings=settings) | {"name": name})
            run = make_run(
                path / "runs" / folder, workers=nodes, step_s=3.7 / nodes ** 0.5, more=more,
                task="cs744", **settings,
            )  # fmt: skip
            for end in (run / "exits").iterdir():
                write_json(end, json.loads(end.read_text()) | {"peak_memory_bytes": 2**29})
    keys = {name: study[name] for name in ("x", "series", "reference", "title", "about")}
    return make_study(path, cells, texts=texts, **keys)


def table_of(path: Path, runs: dict[str, dict[str, Any]], **roles: Any) -> pd.DataFrame:
    """Return a study's table of these runs; `of_bed` and `title` of a run are the study's own."""
    cells = []
    for name, raw in runs.items():
        known = {"settings": raw.pop("of_bed", {}), "name": raw.pop("title", "")}
        make_run(path / "runs" / name, **raw)
        cells.append(cell(name, nodes=raw.get("workers", 2)) | known)
    return scaling.speedup(read_subject([make_study(path, cells, **roles)]))


def courses(path: Path) -> pd.DataFrame:
    return table_of(path, {name: dict(raw) for name, raw in COURSES.items()})


def unequal(path: Path) -> pd.DataFrame:
    """Return HetSeq's table: the batch grows; where `busy` is 1, a node has another program."""
    runs: dict[str, dict[str, Any]] = {}
    for workers, parts, busy, step_s in (
        (1, "even", 0, 0.7), (2, "even", 0, 0.8), (2, "even", 1, 1.5), (2, "auto", 1, 1.1),
        (4, "even", 1, 2.4), (4, "auto", 1, 2.0),
    ):  # fmt: skip
        rows = [step(n, samples=32 * workers, step_s=step_s) for n in range(1, 9)]
        run = {"workers": workers, "rows": rows, "batch_size": 32 * workers, "split": parts}
        runs[f"{workers}-{parts}-{busy}"] = run | {"of_bed": {"busy": busy} if busy else {}}
    names_the_base = {"split": "even", "busy": None}
    return table_of(path, runs, series=["split", "busy"], reference=names_the_base)
