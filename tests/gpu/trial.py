"""Run the rows of the GPU page, several at a time, and write the page and the JSON after each."""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from muster.errors import UsageError
from muster.writing import write_text
from tests.gpu import rows as running
from tests.gpu.bench import TAIL, Bench
from tests.gpu.rows import PLAIN, SINGLE, WARM_UP, Row, judge, rows_for

OVER = "no time was left"  # of --minutes
WAITING = "its turn has not come"
CPUS = 2  # most workers with --device cpu
COLUMNS = ("run", "workers", "seconds", "steps/s", "of the plain script's", "GPU memory, MiB")
COLUMNS += ("notes", "result")


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
    for row in rows:
        row.not_run = WAITING
        if lacking := sorted(set(row.needs) & set(missing)):
            row.not_run = f"{', '.join(lacking)} is missing"
    until = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        bench = Bench(args, Path(name), until)
        with ThreadPoolExecutor(max_workers=2) as pool:
            bench.prepare(pool)
            run_in_turn(rows, bench, lambda: write(rows, about, args))
    write(rows, about, args)
    print(f"{args.page}: {summary(rows)}")
    return 1 if any(row.problem for row in rows) else 0


def run_in_turn(rows: Sequence[Row], bench: Bench, written: Any) -> None:
    """Run them in their order, as many at a time as there are cores for their workers."""
    cores = bench.args.cores or os.cpu_count() or 1
    active: dict[Future[None], Row] = {}
    ended: list[Row] = []

    def wait_for_a_row() -> None:
        done, _ = wait(active, return_when=FIRST_COMPLETED)
        for future in done:
            row = active.pop(future)
            future.result()
            ended.append(row)
            finish(row, rows, bench)
            shown = f"{row.title}: {row.result} ({row.seconds:.0f} s)"
            print(f"[{len(ended)} of {len(rows)}] {shown}", file=sys.stderr, flush=True)
        written()

    with ThreadPoolExecutor(max_workers=cores) as pool:
        for number, row in enumerate(rows):
            if row.not_run != WAITING:
                continue
            needed = load(row, cores)
            while active and needed + sum(load(other, cores) for other in active.values()) > cores:
                wait_for_a_row()
            if time.monotonic() >= bench.until:
                row.not_run = OVER
                continue
            row.not_run = ""
            place = bench.folder / f"row-{number}"
            active[pool.submit(running.attempt, row, bench, place)] = row
        while active:
            wait_for_a_row()


def load(row: Row, cores: int) -> int:
    """How many cores a row that runs takes."""
    return cores if row.alone else min(row.cores or row.workers, cores)


def finish(row: Row, rows: Sequence[Row], bench: Bench) -> None:
    """Judge a row that has run, and those that waited for its losses."""
    if row.problem and time.monotonic() >= bench.until:  # ended by the limit
        row.not_run = OVER
        row.problem = ""
    waiting = [row, *(other for other in rows if other.against == row.name and other is not row)]
    for other in waiting:
        has_run = bool(other.steps) and not other.not_run and not other.problem
        base = next((one for one in rows if one.name == other.against), None)
        if has_run and other.against and (base is None or not base.not_run) and not judged(other):
            if base is not None and base.steps is None and not base.problem:
                continue  # the base is still running
            judge(other, base.steps if base else None)


def judged(row: Row) -> bool:
    return any(note.startswith("losses within") for note in row.notes)


def write(rows: Sequence[Row], packages: str, args: argparse.Namespace) -> None:
    """The page, and all numbers beside it."""
    write_text(args.page, page(rows, packages, args))
    write_text(args.page.with_suffix(".json"), json.dumps([values(row) for row in rows], indent=1))


def values(row: Row) -> dict[str, Any]:
    """A row as JSON has it: the end of what was printed, if it failed."""
    known = {name: value for name, value in vars(row).items() if name not in ("work", "steps")}
    steps = asdict(row.steps) if row.steps else {}
    log = row.log[-TAIL:] if row.problem else ""
    return {**known, **steps, "log": log, "result": row.result, "steps_per_s": row.steps_per_s}


def chosen(rows: list[Row], only: Sequence[str] | None) -> list[Row]:
    """The rows of these names, and those that their losses are held against.

    A name may have the number of workers behind it, as progress shows it: `ddp, 2`.

    Raises:
        UsageError: there is no row of such a name.
    """
    if not only:
        return rows
    known = {name for row in rows for name in (row.name, row.title)}
    if unknown := set(only) - known:
        names = "; ".join(dict.fromkeys(row.name for row in rows))
        raise UsageError(f"--only {min(unknown)}: unknown; known: {names}")
    wanted = [row for row in rows if {row.name, row.title} & set(only)]
    bases = {row.against for row in wanted} | {SINGLE}
    return [row for row in rows if row in wanted or row.name in bases]


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


def page(rows: Sequence[Row], packages: str, args: argparse.Namespace) -> str:
    """The page, as Markdown."""
    count = 0 if args.device == "cpu" else torch.cuda.device_count()
    machine = ", ".join(map(torch.cuda.get_device_name, range(count))) or "**no GPU**: CPUs"
    about = (
        f"{machine}; torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}, transformers "
        f"{transformers.__version__}, Python {platform.python_version()}. Losses are those of "
        f"`{args.model}` BERT, batch {args.batch_size} over all workers, {args.steps} steps, held "
        f"against `single`; these rows run several at a time. Steps per second are of the median "
        f"of {args.speed_steps} steps, without the first {WARM_UP}, each row alone: `BERT` is "
        f"`{args.speed_model}`, batch {args.batch_size}; `VGG-11` has batch {args.images}. "
        f"Seconds are of the whole row, its start included. {packages[0].upper()}{packages[1:]}."
    )
    lines = ["|".join(("", *COLUMNS, "")), "|---" * len(COLUMNS) + "|"]
    lines += ["|".join(("", *cells(row, rows), "")) for row in rows]
    table = "\n".join(lines)
    most = f"more than {count} GPUs, " if count > 1 else "NCCL between GPUs, " if count else ""
    left_out = f"Not tried: {most}several machines."
    title = "What runs on GPUs" if count else "A trial of the GPU check on CPUs"
    return f"# {title}\n\n{about}\n\n{summary(rows)}.\n\n{table}\n\n{left_out}\n"


def cells(row: Row, rows: Sequence[Row]) -> list[str]:
    """One row as the page has it; an unknown number is empty."""
    plain = [other.steps_per_s for other in rows if other.name == f"{row.pair}: {PLAIN}"]
    speed = row.steps_per_s
    ratio = speed / plain[0] if speed and plain and plain[0] else None
    numbers = (row.seconds or None, speed, ratio, row.gpu_mib or None)
    shown = ["" if number is None else f"{number:.4g}" for number in numbers]
    texts = [text.replace("|", "\\|") for text in ("; ".join(row.notes), row.result)]
    return [row.name, str(row.workers), *shown, *texts]
