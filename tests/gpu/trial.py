"""Run the rows of the GPU page one after the other, and write the page after each."""

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
import transformers

from muster.errors import UsageError
from muster.writing import write_text
from tests.benchmarks import made as making
from tests.benchmarks.made import Made
from tests.gpu.rows import PLAIN, SHARED, WARM_UP, Row, rows_for, tried

OVER = "no time was left"  # of --minutes
CPUS = 2  # workers at most, with --device cpu
COLUMNS = ("run", "workers", "seconds", "steps/s", "of the plain script's", "GPU memory, MiB")
COLUMNS += ("losses", "result")


def run_all(args: argparse.Namespace, missing: Sequence[str]) -> int:
    """Run the rows that `args` ask for; the exit code is 1 if one is wrong.

    Raises:
        UsageError: there is no GPU, or no row of such a name.
    """
    gpus = torch.cuda.device_count() if args.device == "cuda" else CPUS
    if not gpus:
        raise UsageError(
            "torch sees no GPU here, so there is nothing to show; run it where nvidia-smi lists "
            "one and torch has CUDA (--device cpu tries the program itself)"
        )
    rows = chosen(list(rows_for(gpus, args.device)), args.only)
    about = packages_line(missing, rows)
    print(about, file=sys.stderr)
    begin = time.monotonic()
    limit_s = 60 * args.minutes if args.minutes else float("inf")
    for row in rows:
        row.not_run = "its turn has not come"
    with tempfile.TemporaryDirectory() as name:
        made = making.ready(args.model, None, Path(name), args.seed)
        for number, row in enumerate(rows):
            left_s = limit_s - (time.monotonic() - begin)
            usual_s = median([other.seconds for other in rows if other.seconds] or [0.0])
            if lacking := sorted(set(row.needs) & set(missing)):
                row.not_run = f"{', '.join(lacking)} is missing"
            elif usual_s > left_s:
                row.not_run = OVER
            else:
                row.not_run = ""
                tried(row, rows[0].steps, made, Path(name, str(number)), args, left_s)
                if row.problem and row.seconds >= left_s:  # ended by the limit
                    row.not_run = OVER
                    row.problem = ""
            shown = f"{row.title}: {row.result}"
            print(f"[{number + 1} of {len(rows)}] {shown} ({row.seconds:.0f} s)", file=sys.stderr)
            write_text(args.page, page(rows, made, about, args))
    print(f"{args.page}: {summary(rows)}")
    return 1 if any(row.problem for row in rows) else 0


def chosen(rows: list[Row], only: Sequence[str] | None) -> list[Row]:
    """The rows of these names, and the single process, which all losses are held against.

    A name may have the number of workers behind it, as progress shows it: `ddp, 2`.

    Raises:
        UsageError: there is no row of such a name.
    """
    if not only:
        return rows
    names = {number: {row.name, row.title} for number, row in enumerate(rows)}
    if unknown := set(only).difference(*names.values()):
        known = "; ".join(dict.fromkeys(row.name for row in rows))
        raise UsageError(f"--only {min(unknown)}: unknown; known: {known}")
    return [row for number, row in enumerate(rows) if number == 0 or names[number] & set(only)]


def packages_line(missing: Sequence[str], rows: Sequence[Row]) -> str:
    """Which packages are missing, and which rows go without them."""
    if not missing:
        return "no package is missing"
    without = [row.name for row in rows if set(row.needs) & set(missing)]
    left_out = f"not run without them: {', '.join(without)}" if without else "no row needs them"
    return f"missing packages: {', '.join(missing)}; {left_out}"


def summary(rows: Sequence[Row]) -> str:
    right = sum(row.result == "right" for row in rows)
    left_out = sum(bool(row.not_run) for row in rows)
    shown = f"{right} of {len(rows)} rows are right"
    return f"{shown}, {left_out} were not run" if left_out else shown


def page(rows: Sequence[Row], made: Made, packages: str, args: argparse.Namespace) -> str:
    """The page, as Markdown."""
    count = 0 if args.device == "cpu" else torch.cuda.device_count()
    machine = ", ".join(map(torch.cuda.get_device_name, range(count))) or "**no GPU**: CPUs"
    about = (
        f"{machine}; torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}, transformers "
        f"{transformers.__version__}, Python {platform.python_version()}. Gradients of "
        f"{made.gradient_bytes / 1e6:.1f} MB, batch {args.batch_size} over all workers, "
        f"{args.steps} steps each. Steps per second are of the median step, without the first "
        f"{WARM_UP}; losses are held against `single`. Seconds are of the whole run, its start "
        f"included. {packages[0].upper()}{packages[1:]}."
    )
    lines = ["|".join(("", *COLUMNS, "")), "|---" * len(COLUMNS) + "|"]
    lines += ["|".join(("", *cells(row, rows), "")) for row in rows]
    table = "\n".join(lines)
    most = max(row.workers for row in rows)
    left_out = f"Not tried: more than {most} workers, several machines."
    title = "What runs on GPUs" if count else "A trial of the GPU check on CPUs"
    return f"# {title}\n\n{about}\n\n{summary(rows)}.\n\n{table}\n\n{left_out}\n"


def cells(row: Row, rows: Sequence[Row]) -> list[str]:
    """One row as the page has it; an unknown number is empty."""
    is_shared = SHARED in row.name
    plain = [
        other.steps_per_s
        for other in rows
        if other.name.startswith(PLAIN)
        and (SHARED in other.name, other.workers) == (is_shared, row.workers)
    ]
    speed = row.steps_per_s
    ratio = speed / plain[0] if speed and plain and plain[0] else None
    numbers = (row.seconds or None, speed, ratio, row.gpu_mib or None)
    shown = ["" if number is None else f"{number:.4g}" for number in numbers]
    result = row.result.replace("|", "\\|")
    return [row.name, str(row.workers), *shown, "; ".join(row.notes), result]
