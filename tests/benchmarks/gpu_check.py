"""All that a machine with one or more GPUs can show, on one page: `make gpu-check`.

    python -m tests.benchmarks.gpu_check [--page FILE] [--model base] [--steps 40]

Every row is a real run through the launcher, with as many workers as GPUs at most: each mode's
losses beside those of a single process, fp16 and bf16, compiled layers, a run that is stopped and
resumed, what a worker's GPU holds, and steps per second beside a hand-written DDP script. With
`--device cpu` the same runs take CPUs, to try the program itself: such a page shows no GPU.
"""

import argparse
import json
import math
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from configs import plugins
from configs.plugins import REPOSITORY
from muster.errors import MusterError
from muster.writing import write_text
from tests.benchmarks import made as making
from tests.benchmarks import places
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
SEED, CPUS = 42, 2  # workers at most, with --device cpu


@dataclass(frozen=True)
class Check:
    """One run: what it shows, on how many GPUs, with which flags."""

    name: str
    workers: int
    flags: tuple[str, ...] = ()
    within: float = SAME  # of the single process's losses
    resumed: bool = False  # stopped half way, and started again


@dataclass
class Row:
    """What came of a check."""

    check: Check
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
    args = parser.parse_args(argv)
    gpus = torch.cuda.device_count() if args.device == "cuda" else CPUS
    if not gpus:
        print(
            "gpu-check: torch sees no GPU here, so there is nothing to show; run it where "
            "nvidia-smi lists one and torch has CUDA (--device cpu tries the program itself)",
            file=sys.stderr,
        )
        return 2
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        made = making.ready(args.model, None, Path(name), SEED)
        for number, check in enumerate(checks(gpus, args.device)):
            rows.append(Row(check))
            try:
                run(rows[-1], made, Path(name, str(number)), args)
                judge(rows[-1], rows[0].steps)
            except MusterError as error:
                rows[-1].problem = str(error).strip().splitlines()[-1]
            print(f"{check.name}, {check.workers}: {rows[-1].problem or 'right'}", file=sys.stderr)
    write_text(args.page, page(rows, made, args))
    print(f"{args.page}: {sum(not row.problem for row in rows)} of {len(rows)} rows are right")
    return 1 if any(row.problem for row in rows) else 0


def checks(gpus: int, device: str) -> Iterator[Check]:
    """The rows of a machine with so many GPUs; the single process comes first."""
    yield Check("single", 1, ("--sync", "single"))
    modes = [mode for mode in plugins.names("train.sync.modes") if mode != "single"]
    counts = [count for count in (1, 2, 4, 8, 16) if count <= gpus]
    for workers in counts:
        for mode in modes:
            yield Check(mode, workers, ("--sync", mode), ALIKE if mode in INEXACT else SAME)
        yield Check(PLAIN, workers)
    yield Check("bf16", counts[-1], ("--precision", "bf16"), NEAR)
    if device == "cuda":  # which CPUs refuse
        yield Check("fp16", counts[-1], ("--precision", "fp16"), NEAR)
    yield Check("compile", counts[-1], ("--compile",), CLOSE)
    yield Check("resume", counts[-1], resumed=True)


def run(row: Row, made: Made, folder: Path, args: argparse.Namespace) -> None:
    """Have `row` know its steps, and what a GPU held.

    Raises:
        MusterError: the run failed.
    """
    check = row.check
    flags = ["--data-dir", str(made.data), "--model", str(made.model), "--lr", "1e-4"]
    flags += ["--batch-size", str(args.batch_size), "--device", args.device, "--seed", str(SEED)]
    with places.place(LOOPBACK, check.workers, threads=1) as place:
        if check.name == PLAIN:
            row.steps = place.peer("plain_ddp", [*flags, "--steps", str(args.steps)])
            return
        flags += ["--task", "rte", "--pad", "max_length", "--schedule-steps", "117"]
        flags += ["--evaluate", "never", "--no-save-model", "--dropout", "0", "--run-id", "run"]
        flags += ["--cache-dir", str(folder.parent / "cache"), *check.flags]
        ends_at = [args.steps]
        if check.resumed:
            ends_at = [max(1, args.steps // 2), args.steps]
            flags += ["--checkpoint-every", str(ends_at[0]), "--resume", "auto", "--overwrite"]
        parts = [place.ours([*flags, "--max-steps", str(last)], folder) for last in ends_at]
        row.steps = Steps(
            [loss for one in parts for loss in one.losses],
            [step_s for one in parts for step_s in one.step_s],
        )
        if check.resumed:
            first, more = (len(one.losses) for one in parts)
            row.notes.append(f"stopped after {first}, then {more} more")
    ends = [json.loads(path.read_text()) for path in folder.glob("run/exits/rank_*.json")]
    row.gpu_mib = max((end["peak_gpu_memory_bytes"] / MIB for end in ends), default=0.0)


def judge(row: Row, base: Steps | None) -> None:
    """Say what is wrong with the losses of `row`, and how far they are from the base's."""
    if row.steps is None or base is None:
        row.problem = "nothing to hold the losses against"
        return
    losses, within = row.steps.losses, row.check.within
    apart = [abs(one - other) for one, other in zip(losses, base.losses, strict=False)]
    most = next((one for one in apart if math.isnan(one)), max(apart))
    row.notes.insert(0, f"losses within {most:.1e}")
    if len(losses) != len(base.losses):
        row.problem = f"{len(losses)} steps instead of {len(base.losses)}"
    elif not most <= within:  # a NaN is not
        row.problem = f"losses differ by {most:.1e}, more than {within:.0e}"


def page(rows: Sequence[Row], made: Made, args: argparse.Namespace) -> str:
    """The page, as Markdown."""
    names = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    machine, title, more = ", ".join(names), "What runs on GPUs", ""
    if args.device == "cpu":
        machine = f"**no GPU**: CPUs ({platform.machine()})"
        title, more = "A trial of gpu-check on CPUs", ", anything on a GPU"
    about = (
        f"{machine}; torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}, "
        f"Python {platform.python_version()}. Gradients of "
        f"{made.gradient_bytes / 1e6:.1f} MB, batch {args.batch_size} over all workers, "
        f"{args.steps} steps each. Steps per second are of the median step, without the first "
        f"{WARM_UP}; losses are held against the single process's."
    )
    plain = {row.check.workers: row.steps_per_s for row in rows if row.check.name == PLAIN}
    table = []
    for row in rows:
        speed, other = row.steps_per_s, plain.get(row.check.workers)
        shown = {"run": row.check.name, "workers": row.check.workers, "steps/s": speed}
        shown["of the plain script's"] = speed / other if speed and other else None
        shown |= {"GPU memory, MiB": row.gpu_mib or None, "losses": "; ".join(row.notes)}
        table.append(shown | {"result": f"**wrong**: {row.problem}" if row.problem else "right"})
    left_out = f"more than {max(plain, default=1)} workers{more}, several machines"
    return f"# {title}\n\n{about}\n\n{markdown_table(table)}\n\nNot run here: {left_out}.\n"


if __name__ == "__main__":
    sys.exit(main())
