"""The rows of the GPU page: what each one runs, and when its losses are right."""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np

from configs import plugins
from muster.errors import MusterError
from tests.benchmarks.cases import OURS, PADDED, Case
from tests.benchmarks.made import Made
from tests.benchmarks.places import TIMEOUT_S, Place, Steps
from tests.commands import cause_in

SINGLE = "single"
AGAIN = "single, again"
PLAIN = "plain DDP script"
SCRIPT = "the script with muster.sync"
RESUMED = "resume"
SHARED = "of one GPU"  # several workers on one GPU, which NCCL refuses and gloo does not
INEXACT = ("local_sgd",)  # modes whose losses are others, if not by much
COMPRESSORS = {"bf16": 5e-2, "int8": 5e-2, "powersgd": 3e-1}  # and how far off the losses may be
# How far a loss may be from the single process's: float32 added up in another order, compiled
# kernels, 16 bits, another method.
SAME, CLOSE, NEAR, ALIKE = 1e-4, 1e-3, 5e-2, 3e-1
WARM_UP = 5  # first steps, which do not count for speed
MIB = 2**20


@dataclass
class Row:
    """A run: what it shows, with how many workers and which flags; and what came of it."""

    name: str
    workers: int
    flags: tuple[str, ...] = ()
    within: float = SAME  # of the single process's losses
    peer: tuple[str, ...] | None = None  # the flags of the hand-written script, if it is that
    needs: tuple[str, ...] = ()  # packages beside those that every row needs
    steps: Steps | None = None
    seconds: float = 0.0  # of the whole run, its start included
    gpu_mib: float = 0.0  # of the worker that needs most
    not_run: str = ""  # the reason
    problem: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{self.name}, {self.workers}"

    @property
    def steps_per_s(self) -> float | None:
        return 1 / median(self.steps.step_s[WARM_UP:] or self.steps.step_s) if self.steps else None

    @property
    def result(self) -> str:
        """`right`, or what is wrong, or why the row was not run."""
        if self.not_run:
            return f"not run: {self.not_run}"
        return f"**wrong**: {self.problem}" if self.problem else "right"


def rows_for(gpus: int, device: str) -> Iterator[Row]:
    """The rows of a machine with so many GPUs: the single process, then what shows most first."""
    yield Row(SINGLE, 1, ("--sync", "single"))
    modes = [mode for mode in plugins.names("train.sync.modes") if mode != "single"]
    counts = [count for count in (1, 2, 4, 8, 16) if count <= gpus]
    if device == "cuda":
        yield Row(AGAIN, 1, ("--sync", "single"))  # what the device itself differs by
        for workers in (2, 4):
            yield from _shared(workers, modes)
    yield Row("bf16", counts[-1], ("--precision", "bf16"), NEAR)
    if device == "cuda":  # which CPUs do slowly
        yield Row("fp16", counts[-1], ("--precision", "fp16"), NEAR)
    yield Row("compile", counts[-1], ("--compile",), CLOSE)
    yield Row(RESUMED, counts[-1], ("--run-id", "run", "--resume", "auto", "--overwrite"))
    for workers in counts[::-1]:
        yield Row(PLAIN, workers, peer=())
        yield Row(SCRIPT, workers, peer=("--sync", "muster"))
        for mode in modes:
            yield _mode(mode, workers)


def _mode(mode: str, workers: int, *flags: str) -> Row:
    within = ALIKE if mode in INEXACT else SAME
    needs = (mode,) if mode == "accelerate" else ()
    return Row(mode, workers, ("--sync", mode, *flags), within, needs=needs)


def _shared(workers: int, modes: Sequence[str]) -> Iterator[Row]:
    """Workers that share one GPU through gloo: all that runs with several ranks, but for NCCL."""
    through = ("--backend", "gloo")
    rows = [_mode(mode, workers, *through) for mode in modes]
    for name, within in COMPRESSORS.items():
        flags = ("--sync", "all_reduce", "--compress", name, *through)
        rows.append(Row(f"compress {name}", workers, flags, within))
    rows.append(Row(SCRIPT, workers, peer=("--sync", "muster", "--share-gpu")))
    rows.append(Row(PLAIN, workers, peer=("--share-gpu",)))
    for row in rows:
        row.name += f", {SHARED}"
        yield row


def run(row: Row, made: Made, folder: Path, args: argparse.Namespace, left_s: float) -> None:
    """Have `row` know its steps, and what a GPU held; it may take `left_s` seconds.

    Raises:
        MusterError: the run failed, or took longer.
    """
    case = Case(row.name, OURS, (*PADDED, *row.flags))
    parts: list[tuple[str, ...]] = [()]
    if row.peer is not None:
        case = Case(row.name, "plain_ddp", row.peer)
    elif row.name == RESUMED:  # stopped half way, and started again
        half = str(max(1, args.steps // 2))
        every = ("--checkpoint-every", half)
        parts = [(*every, "--max-steps", half), every]
        row.notes.append(f"stopped after {half}")
    steps = Steps([], [])
    begin = time.monotonic()
    try:
        for more in parts:
            left = left_s - (time.monotonic() - begin)
            place = Place(row.workers, 1, cluster=None, timeout_s=max(1.0, min(TIMEOUT_S, left)))
            part = replace(case, flags=(*case.flags, *more))
            found = place.run(part, made, args, folder.parent, folder)
            steps.losses.extend(found.losses)
            steps.step_s.extend(found.step_s)
    finally:
        row.seconds = time.monotonic() - begin
    row.steps = steps
    ends = [json.loads(path.read_text()) for path in folder.glob("*/exits/rank_*.json")]
    held = [end.get("peak_gpu_memory_bytes", 0) / MIB for end in ends]
    row.gpu_mib = max(held, default=0.0)


def judge(row: Row, base: Steps | None) -> None:
    """Say what is wrong with the losses of `row`, and how far they are from the base's."""
    losses = row.steps.losses if row.steps else []
    if base is None:
        row.problem = "nothing to hold the losses against"
    elif len(losses) != len(base.losses):
        row.problem = f"{len(losses)} steps instead of {len(base.losses)}"
    else:
        most = np.abs(np.subtract(losses, base.losses)).max()
        row.notes.insert(0, f"losses within {most:.1e}")
        if not most <= row.within:  # a NaN is not
            row.problem = f"losses differ by {most:.1e}, more than {row.within:.0e}"


def tried(row: Row, base: Steps | None, *how: object) -> None:
    """Run and judge one row; a failure is what is wrong with it."""
    try:
        run(row, *how)  # type: ignore[arg-type]
        judge(row, base or row.steps)
    except MusterError as error:
        row.problem = cause_in(str(error).strip())
