"""All that a machine with one or more GPUs can show, on one page: `make gpu-check`.

    python -m tests.benchmarks.gpu_check [--page FILE] [--model base] [--steps 40]

Every row is a real run through the launcher, with as many workers as GPUs at most: each mode's
losses beside those of a single process, fp16 and bf16, compiled layers, a run that is stopped and
resumed, what a worker's GPU holds, and steps per second beside a hand-written DDP script. With
`--device cpu` the same runs take CPUs, to try the program itself: such a page shows no GPU.
"""

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from configs import cli, plugins
from configs.plugins import REPOSITORY
from muster.errors import MusterError, UsageError
from muster.writing import write_text
from tests.benchmarks import bench, places
from tests.benchmarks import made as making
from tests.benchmarks.cases import OURS, PADDED, Case
from tests.benchmarks.made import Made
from tests.benchmarks.places import LOOPBACK, Steps
from train.report.pages.page import markdown_table

PAGE = REPOSITORY / "logs" / "gpu-check.md"
INEXACT = ("local_sgd",)  # modes whose losses are others, if not by much
WARM_UP = 5  # first steps, which do not count for speed
# How far a loss may be from the single process's: float32 added up in another order, compiled
# kernels, 16 bits, another method.
SAME, CLOSE, NEAR, ALIKE = 1e-4, 1e-3, 5e-2, 3e-1
PLAIN = "plain DDP script"
MIB = 2**20
RESUMED = "resume"
CPUS = 2  # workers at most, with --device cpu


@dataclass
class Row:
    """A run: what it shows, on how many GPUs, with which flags; and what came of it."""

    name: str
    workers: int
    flags: tuple[str, ...] = ()
    within: float = SAME  # of the single process's losses
    steps: Steps | None = None
    gpu_mib: float = 0.0  # of the worker that needs most
    problem: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def steps_per_s(self) -> float | None:
        return 1 / median(self.steps.step_s[WARM_UP:] or self.steps.step_s) if self.steps else None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make gpu-check", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page goes")
    parser.add_argument("--model", default="base", help="small or base (made here), or a folder")
    parser.add_argument("--steps", type=int, default=40, help="of each run")
    parser.add_argument("--batch-size", type=int, default=32, help="of all workers together")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.set_defaults(lr=1e-4, seed=42)
    args = parser.parse_args(argv)
    gpus = torch.cuda.device_count() if args.device == "cuda" else CPUS
    if not gpus:
        raise UsageError(
            "torch sees no GPU here, so there is nothing to show; run it where nvidia-smi lists "
            "one and torch has CUDA (--device cpu tries the program itself)"
        )
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        made = making.ready(args.model, None, Path(name), args.seed)
        for number, row in enumerate(checks(gpus, args.device)):
            rows.append(row)
            try:
                run(row, made, Path(name, str(number)), args)
                judge(row, rows[0].steps)
            except MusterError as error:
                row.problem = str(error).strip().splitlines()[-1]
            print(f"{row.name}, {row.workers}: {row.problem or 'right'}", file=sys.stderr)
    write_text(args.page, page(rows, made, args))
    print(f"{args.page}: {sum(not row.problem for row in rows)} of {len(rows)} rows are right")
    return 1 if any(row.problem for row in rows) else 0


def checks(gpus: int, device: str) -> Iterator[Row]:
    """The rows of a machine with so many GPUs; the single process comes first."""
    yield Row("single", 1, ("--sync", "single"))
    modes = [mode for mode in plugins.names("train.sync.modes") if mode != "single"]
    counts = [count for count in (1, 2, 4, 8, 16) if count <= gpus]
    for workers in counts:
        for mode in modes:
            yield Row(mode, workers, ("--sync", mode), ALIKE if mode in INEXACT else SAME)
        yield Row(PLAIN, workers)
    yield Row("bf16", counts[-1], ("--precision", "bf16"), NEAR)
    if device == "cuda":  # which CPUs refuse
        yield Row("fp16", counts[-1], ("--precision", "fp16"), NEAR)
    yield Row("compile", counts[-1], ("--compile",), CLOSE)
    yield Row(RESUMED, counts[-1], ("--run-id", "run", "--resume", "auto", "--overwrite"))


def run(row: Row, made: Made, folder: Path, args: argparse.Namespace) -> None:
    """Have `row` know its steps, and what a GPU held.

    Raises:
        MusterError: the run failed.
    """
    case = Case(row.name, OURS, (*PADDED, *row.flags))
    parts: list[tuple[str, ...]] = [()]
    if row.name == PLAIN:
        case = Case(row.name, "plain_ddp")
    elif row.name == RESUMED:  # stopped half way, and started again
        half = str(max(1, args.steps // 2))
        every = ("--checkpoint-every", half)
        parts = [(*every, "--max-steps", half), every]
        row.notes.append(f"stopped after {half}")
    steps = Steps([], [])
    with places.place(LOOPBACK, row.workers, threads=1) as place:
        for more in parts:
            part = replace(case, flags=(*case.flags, *more))
            found = bench.run(place, part, made, args, folder.parent, folder)
            steps.losses.extend(found.losses)
            steps.step_s.extend(found.step_s)
    row.steps = steps
    ends = [json.loads(path.read_text()) for path in folder.glob("*/exits/rank_*.json")]
    row.gpu_mib = max((end["peak_gpu_memory_bytes"] / MIB for end in ends), default=0.0)


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


def page(rows: Sequence[Row], made: Made, args: argparse.Namespace) -> str:
    """The page, as Markdown."""
    count = 0 if args.device == "cpu" else torch.cuda.device_count()
    machine = ", ".join(map(torch.cuda.get_device_name, range(count))) or "**no GPU**: CPUs"
    about = (
        f"{machine}; torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}, Python "
        f"{platform.python_version()}. Gradients of {made.gradient_bytes / 1e6:.1f} MB, batch "
        f"{args.batch_size} over all workers, {args.steps} steps each. Steps per second are of "
        f"the median step, without the first {WARM_UP}; losses are held against `single`."
    )
    plain = {row.workers: row.steps_per_s for row in rows if row.name == PLAIN}
    table = []
    for row in rows:
        speed, other = row.steps_per_s, plain.get(row.workers)
        shown = {"run": row.name, "workers": row.workers, "steps/s": speed}
        shown["of the plain script's"] = speed / other if speed and other else None
        shown |= {"GPU memory, MiB": row.gpu_mib or None, "losses": "; ".join(row.notes)}
        table.append(shown | {"result": f"**wrong**: {row.problem}" if row.problem else "right"})
    left_out = f"Not run here: more than {max(plain, default=1)} workers, several machines."
    title = "What runs on GPUs" if count else "A trial of gpu-check on CPUs"
    return f"# {title}\n\n{about}\n\n{markdown_table(table)}\n\n{left_out}\n"


if __name__ == "__main__":
    cli.run(main)
