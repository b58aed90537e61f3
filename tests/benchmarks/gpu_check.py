"""All that a machine with one or more GPUs can show, on one page: `make gpu-check`.

    python -m tests.benchmarks.gpu_check [--page FILE] [--model base] [--steps 40] [--only NAME,...]

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
    def steps_per_s(self) -> float:
        assert self.steps is not None
        return 1 / median(self.steps.step_s[WARM_UP:] or self.steps.step_s)


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    gpus = torch.cuda.device_count() if args.device == "cuda" else args.cpus
    if args.device == "cuda" and not gpus:
        print(
            "gpu-check: torch sees no GPU here, so there is nothing to show; run it where "
            "nvidia-smi lists one and torch has CUDA (--device cpu tries the program itself)",
            file=sys.stderr,
        )
        return 2
    known = list(checks(gpus, args.device))
    names = dict.fromkeys(check.name for check in known)
    chosen = args.only.split(",") if args.only else names
    if unknown := set(chosen) - names.keys():
        message = f"--only: unknown {', '.join(sorted(unknown))}; known: {', '.join(names)}"
        print(message, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = making.ready(args.model, None, folder, args.seed)
        rows = measured([one for one in known if one.name in chosen], made, folder, args)
    write_text(args.page, page(rows, made, args))
    print(f"{args.page}: {sum(not row.problem for row in rows)} of {len(rows)} rows are right")
    return 1 if any(row.problem for row in rows) else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="make gpu-check", description=(__doc__ or "").splitlines()[0]
    )
    made.add_argument("--page", type=Path, default=PAGE, help="where the page goes")
    made.add_argument("--model", default="base", help="small or base (made here), or a folder")
    made.add_argument("--steps", type=int, default=40, help="of each run")
    made.add_argument("--batch-size", type=int, default=32, help="of all workers together")
    made.add_argument("--seed", type=int, default=42)
    made.add_argument("--only", metavar="NAME,...", help="these rows")
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    made.add_argument("--cpus", type=int, default=2, help="workers at most, with --device cpu")
    return made


def checks(gpus: int, device: str) -> Iterator[Check]:
    """The rows of a machine with so many GPUs; the single process comes first."""
    yield Check("single", 1, ("--sync", "single"))
    modes = [mode for mode in plugins.names("train.sync.modes") if mode != "single"]
    for workers in [1, *(count for count in (2, 4, 8, 16) if count <= gpus)]:
        for mode in modes:
            within = ALIKE if mode in INEXACT else SAME
            yield Check(mode, workers, ("--sync", mode), within)
        yield Check(PLAIN, workers)
    most = max(count for count in (1, 2, 4, 8, 16) if count <= max(gpus, 1))
    yield Check("bf16", most, ("--precision", "bf16"), NEAR)
    if device == "cuda":  # which CPUs refuse
        yield Check("fp16", most, ("--precision", "fp16"), NEAR)
    yield Check("compile", most, ("--compile",), CLOSE)
    yield Check("resume", most, resumed=True)


def measured(
    chosen: Sequence[Check], made: Made, folder: Path, args: argparse.Namespace
) -> list[Row]:
    """Run all of them, one after the other; a run that fails is a row that says so."""
    rows: list[Row] = []
    for number, check in enumerate(chosen):
        row = Row(check)
        rows.append(row)
        try:
            run(row, made, folder / str(number), args)
            base = next((one for one in rows if one.check.name == "single"), None)
            judge(row, base.steps if base else None)
        except MusterError as error:
            row.problem = str(error).strip().splitlines()[-1]
        print(f"{check.name}, {check.workers}: {row.problem or 'right'}", file=sys.stderr)
    return rows


def run(row: Row, made: Made, folder: Path, args: argparse.Namespace) -> None:
    """Have `row` know its steps, and what a GPU held.

    Raises:
        MusterError: the run failed.
    """
    check, folder = row.check, folder.absolute()
    flags = ["--data-dir", str(made.data), "--model", str(made.model), "--lr", "1e-4"]
    flags += ["--batch-size", str(args.batch_size), "--seed", str(args.seed)]
    flags += ["--device", args.device]
    with places.place(LOOPBACK, check.workers, threads=1) as place:
        if check.name == PLAIN:
            row.steps = place.peer("plain_ddp", [*flags, "--steps", str(args.steps)])
            return
        flags += ["--task", "rte", "--pad", "max_length", "--schedule-steps", "117"]
        flags += ["--evaluate", "never", "--no-save-model", "--dropout", "0", "--run-id", "run"]
        flags += ["--cache-dir", str(folder.parent / "cache"), *check.flags]
        if not check.resumed:
            row.steps = place.ours([*flags, "--max-steps", str(args.steps)], folder)
        else:
            every = max(1, args.steps // 2)
            flags += ["--checkpoint-every", str(every)]
            first = place.ours([*flags, "--max-steps", str(every)], folder)
            more = [*flags, "--max-steps", str(args.steps), "--resume", "auto", "--overwrite"]
            second = place.ours(more, folder)
            row.notes.append(f"stopped after {len(first.losses)}, then {len(second.losses)} more")
            row.steps = Steps(first.losses + second.losses, first.step_s + second.step_s)
    ends = [json.loads(path.read_text()) for path in folder.glob("run/exits/rank_*.json")]
    row.gpu_mib = max((end["peak_gpu_memory_bytes"] / MIB for end in ends), default=0.0)


def judge(row: Row, base: Steps | None) -> None:
    """Say what is wrong with the losses of `row`, and how far they are from the base's."""
    assert row.steps is not None
    losses, within = row.steps.losses, row.check.within
    if base is None:
        row.notes.insert(0, "nothing to hold them against")
        return
    apart = [abs(one - other) for one, other in zip(losses, base.losses, strict=False)]
    most = next((one for one in apart if math.isnan(one)), max(apart))
    row.notes.insert(0, f"losses within {most:.1e}")
    if len(losses) != len(base.losses):
        row.problem = f"{len(losses)} steps instead of {len(base.losses)}"
    elif not most <= within:  # a NaN is not
        row.problem = f"losses differ by {most:.1e}, more than {within:.0e}"


def page(rows: Sequence[Row], made: Made, args: argparse.Namespace) -> str:
    """The page, as Markdown."""
    is_gpu = args.device == "cuda"
    names = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    machine = ", ".join(names) if is_gpu else f"**no GPU**: CPUs ({platform.machine()})"
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}"
    about = (
        f"{machine}; {versions}, Python {platform.python_version()}. Gradients of "
        f"{made.gradient_bytes / 1e6:.1f} MB, batch {args.batch_size} over all workers, "
        f"{args.steps} steps each. Steps per second are of the median step, without the first "
        f"{WARM_UP}; losses are held against the single process's."
    )
    title = "What runs on GPUs" if is_gpu else "A trial of gpu-check on CPUs"
    plain = {row.check.workers: row for row in rows if row.check.name == PLAIN and row.steps}
    table = []
    for row in rows:
        speed = row.steps_per_s if row.steps else None
        other = plain.get(row.check.workers)
        shown = {"run": row.check.name, "workers": row.check.workers, "steps/s": speed}
        shown["of the plain script's"] = speed / other.steps_per_s if speed and other else None
        shown |= {"GPU memory, MiB": row.gpu_mib or None, "losses": "; ".join(row.notes)}
        table.append(shown | {"result": f"**wrong**: {row.problem}" if row.problem else "right"})
    most = max((row.check.workers for row in rows), default=1)
    left_out = (
        f"more than {most} workers{'' if is_gpu else ', anything on a GPU'}, several machines"
    )
    return f"# {title}\n\n{about}\n\n{markdown_table(table)}\n\nNot run here: {left_out}.\n"


if __name__ == "__main__":
    sys.exit(main())
