"""What a rank holds at most, beside a single process with as many samples: in turns, some rounds.

    python -m tests.benchmarks.memory [--model FILE] [--batch-size 8] [--rounds 3] [--json FILE]

Peak resident memory, libraries included, as every run leaves it in `exits/`. The heap's waste
between blocks differs by 100 MiB and more from run to run, of a single process as well; so large
blocks go back to the system at once here, as the C library has it where MALLOC_MMAP_THRESHOLD_ is
set. With `--heap` it is measured as it is by itself.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from configs.plugins import REPOSITORY
from tests.benchmarks import local
from tests.benchmarks.results import aligned

MODEL = str(REPOSITORY / "configs" / "models" / "bert-base.json")
MODES = ("single", "all_reduce", "gather_scatter", "ddp")
RANKS, STEPS = 2, 4
FLAGS = [f"--max-steps={STEPS}", "--evaluate=never"]
FLAGS += ["--pad=max_length", "--no-length-balance"]  # as many tokens in every mode

Peaks = Mapping[str, Sequence[float]]  # of every rank of every run of a mode, in MiB


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=MODEL, help="a configuration file of a BERT")
    parser.add_argument("--batch-size", type=int, default=8, help="of each rank")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--heap", action="store_true", help="with the waste of the heap")
    parser.add_argument("--json", type=Path, help="write the figures into this file")
    args = parser.parse_args()
    env = dict(os.environ) if args.heap else exact()
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(args.rounds):
        for mode in MODES:
            ranks = 1 if mode == "single" else RANKS
            found[mode] += measured(mode, ranks, args.model, args.batch_size * ranks, env)
    print(aligned(table(found)))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def exact() -> dict[str, str]:
    """The environment in which a process holds what it asked for, and no waste between."""
    return {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**16)}


def measured(
    mode: str, ranks: int, model: str, batch_size: int, env: Mapping[str, str]
) -> list[float]:
    """One run: MiB of each rank."""
    words = [*FLAGS, f"--train-samples={batch_size * STEPS}"]
    with local.ran(mode, ranks, model, batch_size, words, env) as run:
        return local.peaks_mib(run)


def table(found: Peaks) -> list[list[str]]:
    """A row per mode; what it has more than `single` is between the medians."""
    alone = median(found["single"])
    rows = [["mode", "median MiB", "least", "most", "more than single"]]
    for mode, peaks in found.items():
        middle = median(peaks)
        figures = (middle, min(peaks), max(peaks), middle - alone)
        rows.append([mode, *(f"{figure:,.0f}" for figure in figures)])
    return rows


if __name__ == "__main__":
    sys.exit(main())
