"""Seconds of a step that computes all the time: `muster run` beside torchrun, and the best by hand.

    python -m tests.benchmarks.cores [--rounds 5] [--steps 20] [--cores 2] [--workers 1,2,4]

One node on this machine, all in turns: torchrun by itself, `muster run` with each of its starters,
and torchrun with each OMP_NUM_THREADS up to the number of cores, of which the best one counts.
"""

import argparse
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from muster.checkout import CHECKOUT
from tests.benchmarks.results import held, spread
from tests.commands import call
from tests.launch.submit import SUBMIT
from train.report.pages.page import markdown_table

SCRIPT = str(Path(__file__).with_name("peers") / "computes.py")
MOST = 1.05  # of the best by hand
STARTERS = ("torchrun", "manual")
TORCHRUN = "torchrun"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind")
    parser.add_argument("--steps", type=int, default=20, help="of each run")
    parser.add_argument("--cores", type=int, default=2, help="that all runs use")
    parser.add_argument("--workers", default="1,2,4")
    args = parser.parse_args(argv)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    rows = []
    for workers in map(int, args.workers.split(",")):
        rows += table(workers, measured(workers, args))
    print(markdown_table(rows))
    return 0


def measured(workers: int, args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of a step in each round, by the command."""
    found = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        ours = [SUBMIT, "--launcher=local", "--nodes=1", f"--logs-dir={folder}"]
        by_torchrun = ["-m", "torch.distributed.run", "--standalone"]
        size, program = f"--nproc-per-node={workers}", [SCRIPT, str(args.steps)]
        for _ in range(args.rounds):
            found[TORCHRUN].append(step_s([*by_torchrun, size, *program]))
            for starter in STARTERS:
                words = [*ours, size, f"--workers={starter}", "--", *program]
                found[f"muster run, {starter}"].append(step_s(words))
            for threads in range(1, args.cores + 1):
                name = f"OMP_NUM_THREADS={threads}"
                found[name].append(step_s([*by_torchrun, size, *program], str(threads)))
    return found


def step_s(words: Sequence[str], threads: str | None = None) -> float:
    """Seconds of a step, as a run's rank 0 prints them."""
    setting = ["-u", "OMP_NUM_THREADS"] if threads is None else [f"OMP_NUM_THREADS={threads}"]
    done = call("env", "-u", "MKL_NUM_THREADS", *setting, sys.executable, *words, cwd=CHECKOUT)
    found = re.search(r"^step_s (\d+\.\d+)$", done.stdout, re.MULTILINE)
    if done.returncode or found is None:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return float(found[1])


def table(workers: int, found: dict[str, list[float]]) -> list[dict[str, str]]:
    """A row for each command: what it takes of the best setting by hand, round by round."""
    by_hand = [name for name in found if name.startswith("OMP_NUM_THREADS=")]
    best = min(by_hand, key=lambda name: fmean(found[name]))
    rows = []
    for name, seconds in found.items():
        ratios = [own / other for own, other in zip(seconds, found[best], strict=True)]
        most = MOST if name.startswith("muster run") else None
        note = f" ({spread(seconds)} s){', the best' if name == best else ''}"
        what = f"workers: {workers}, {name}; of the best by hand"
        rows.append(held(what, ratios, most, note=note))
    return rows


if __name__ == "__main__":
    sys.exit(main())
