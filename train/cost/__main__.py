"""What steps must cost, beside what they did: `python -m train.cost logs/<run or study> ...`."""

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from configs import cli
from muster.errors import UsageError
from muster.run_files import PREDICTION
from muster.writing import write_json
from train.cost.advice import sentences
from train.cost.comparison import Outcome, compare
from train.cost.fit import Bench, fit_bench
from train.cost.measured_runs import read_all

WORKERS = "8,16,32,64,128,256,512,1024"
TITLE = "seconds per iteration; its sync as measured, and the model's error"


def main() -> int:
    args = _parser().parse_args()
    if args.link_mbit is not None and not 0 < args.link_mbit < math.inf:
        raise UsageError(f"--link-mbit must be a number above 0 (got {args.link_mbit})")
    bench = _bench(args.collectives)
    if args.link_mbit:
        bench = bench.at_rate(args.link_mbit)
    outcome = compare(read_all(args.folder), bench, _numbers(args.workers))
    lines = sentences(outcome)
    write_json(PREDICTION.path(args.folder), facts(outcome, lines))
    console = Console(
        width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120, highlight=False
    )
    console.print(table(outcome))
    where = str(PREDICTION.path(args.folder))
    for line in (*lines, "", "Assumed:", *outcome.assumptions, "", where):
        console.print(line, markup=False)
    return 0


def table(outcome: Outcome) -> Table:
    """A row for each mode and number of workers; seconds of a step."""
    columns = (
        "mode", "workers", "predicted", "measured", "error", "computing", "latency", "bandwidth",
        "hidden", "sync", "error",
    )  # fmt: skip
    shown = Table(*columns, box=box.SIMPLE, pad_edge=False, title=TITLE)
    for number, column in enumerate(shown.columns):
        column.justify, column.no_wrap = "right" if number else "left", True
    for cell in sorted(outcome.cells, key=lambda one: one.predicted.workers):
        made = cell.predicted
        shown.add_row(
            made.mode,
            str(made.workers),
            _s(made.step_s),
            _s(cell.measured_s),
            _percent(cell.error),
            _s(made.compute_s),
            _s(made.latency_s),
            _s(made.bandwidth_s),
            _s(made.hidden_s),
            _s(cell.measured_sync_s),
            _percent(cell.sync_error),
        )
    return shown


def facts(outcome: Outcome, lines: list[str]) -> dict[str, Any]:
    """What prediction.json holds."""
    steps: dict[str, dict[str, Any]] = {}
    syncs: dict[str, dict[str, Any]] = {}
    for cell in outcome.cells:
        made = cell.predicted
        workers = str(made.workers)
        steps.setdefault(made.mode, {})[workers] = {
            "predicted_s": made.step_s,
            "measured_s": cell.measured_s,
            "compute_s": made.compute_s,
            "latency_s": made.latency_s,
            "bandwidth_s": made.bandwidth_s,
            "hidden_s": made.hidden_s,
            "samples_per_worker": made.samples,
        }
        if cell.measured_sync_s is not None:
            syncs.setdefault(made.mode, {})[workers] = {
                "predicted_s": made.sync_s,
                "measured_s": cell.measured_sync_s,
            }
    bench = outcome.bench
    return {
        "seconds_per_iteration": steps,
        "sync_seconds": syncs,
        "fit": {
            "gradient_bytes": outcome.gradient_bytes,
            "collectives_per_step": outcome.buckets,
            "compute": asdict(outcome.compute),
            "links": {
                name: {**fit.facts(), "wire_mbit_s": bench.wire_mbit_s(name)}
                for name, fit in bench.fits.items()
            },
            "bench": {
                "workers": bench.workers,
                "nodes": bench.nodes,
                "backend": bench.backend,
                "interface": bench.interface,
                "mtu_bytes": bench.mtu_bytes,
            },
        },
        "assumptions": list(outcome.assumptions),
        "words": lines,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train.cost", description="What steps must cost, beside what they did."
    )
    parser.add_argument("folder", type=Path, help="a run's or a study's folder")
    parser.add_argument(
        "--collectives",
        type=Path,
        required=True,
        metavar="FILE",
        help="collectives.json of --program bench_collectives on the same nodes",
    )
    parser.add_argument(
        "--link-mbit",
        type=float,
        metavar="RATE",
        help="predict for links of RATE Mbit/s with their headers, not for those measured",
    )
    parser.add_argument(
        "--workers", default=WORKERS, help=f"predict for so many, too (default: {WORKERS})"
    )
    return parser


def _numbers(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise UsageError(f"--workers {text!r}: use numbers from 1 on, such as 8,16,1024")
    return found


def _bench(path: Path) -> Bench:
    try:
        raw: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    return fit_bench(raw, str(path))


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.4f}"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:+.1%}"


if __name__ == "__main__":
    cli.run(main)
