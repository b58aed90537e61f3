"""Compare Muster with hand-written training, in turns, on one set of machines: `make bench`.

    python -m tests.benchmarks.bench [--rates 1gbit,10gbit] [--rounds 3] [--only NAME,...]

It runs on the testbed (as root) or, with `--rates loopback`, only on this machine. Every case
trains the same model on the same samples in the same order from the same weights, without dropout.
A case whose losses differ from plain DDP's does not count.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from configs import cli
from launch.virtual_cluster.virtual_nodes import rate_bits
from muster.errors import MusterError, UsageError
from tests.benchmarks import cases as table_of_cases
from tests.benchmarks import figure, places, results, startup, targets
from tests.benchmarks import made as making
from tests.benchmarks.cases import Case
from tests.benchmarks.made import Made
from tests.benchmarks.places import LOOPBACK
from tests.benchmarks.results import Results
from train.report.pages.page import markdown_table


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    rates = args.rates.split(",")
    for rate in rates:
        if rate != LOOPBACK and not rate_bits(rate):
            raise UsageError(f"--rates {rate}: give rates like 1gbit, or {LOOPBACK}")
    cases = table_of_cases.chosen(args.only)
    if args.steps <= results.WARM_UP:
        raise UsageError(f"--steps {args.steps}: the first {results.WARM_UP} are left out")
    if args.batch_size % args.nodes:
        raise UsageError(f"--batch-size {args.batch_size} is not a multiple of {args.nodes} nodes")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = making.ready(args.model, args.data_dir, folder, args.seed)
        megabytes = made.gradient_bytes / 1e6
        print(
            f"{args.model}: {megabytes:.1f} MB of gradients in {made.tensors} tensors; "
            f"{args.nodes} nodes, batch {args.batch_size}, threads per worker: {args.threads}, "
            f"cores in all: {os.cpu_count()}; {args.rounds} rounds of {args.steps} steps"
        )
        found: list[Results] = []
        for rate in rates:
            found.append(measured(rate, cases, made, args, folder))
            if args.json:
                keep(found, args)
    rows = targets.table(found, args.model)
    if not args.only:
        rows += startup.table(startup.measured(args.rounds))
    print(f"\n{markdown_table(rows)}")
    if args.figure:
        figure.draw(found[0], cases, args.figure)
    return 1 if any(one.failed for one in found) else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.bench", description=(__doc__ or "").splitlines()[0]
    )
    made.add_argument(
        "--rates", default="1gbit,10gbit", help="of the links, such as 1gbit, or loopback"
    )
    made.add_argument("--rounds", type=int, default=3, help="runs of each case at each rate")
    made.add_argument("--steps", type=int, default=15, help="of each run")
    made.add_argument("--only", metavar="NAME,...", help="these cases, and their bases")
    made.add_argument("--nodes", type=int, default=4)
    made.add_argument("--batch-size", type=int, default=64, help="of all nodes together")
    made.add_argument("--threads", type=int, default=1, help="of each worker")
    made.add_argument("--lr", type=float, default=2e-5, help="learning rate")
    made.add_argument("--seed", type=int, default=42)
    made.add_argument("--model", default="small", help="small or base (made here), or a folder")
    made.add_argument("--data-dir", type=Path, help="RTE's TSV files (default: made here)")
    made.add_argument("--json", type=Path, help="write every loss and second into this file")
    made.add_argument("--figure", type=Path, help="draw the first rate into this SVG file")
    made.set_defaults(device="cpu")
    return made


def measured(
    rate: str, cases: Sequence[Case], made: Made, args: argparse.Namespace, folder: Path
) -> Results:
    """Run all rounds at one rate and print their table; a case that fails is skipped from then on.

    Raises:
        MusterError: a base case failed, without which there is no ratio.
    """
    found = Results(rate)
    with places.machines(rate, args.nodes, args.threads) as place:
        for number in range(args.rounds):
            for case in cases:
                if case.name in found.failed:
                    continue
                try:
                    steps = place.run(case, made, args, folder)
                    if len(steps.losses) != args.steps:
                        raise MusterError(f"{len(steps.losses)} steps instead of {args.steps}")
                    found.runs[case.name].append(steps)
                    lines = f"{found.seconds(case.name)[-1]:.3f} s"
                except MusterError as error:
                    if case.name == case.base:
                        raise
                    found.runs.pop(case.name, None)  # and its earlier rounds do not count
                    found.failed[case.name] = lines = str(error)
                print(f"{rate} round {number + 1} {case.name}: {lines}", file=sys.stderr)
    limits = results.bounds(made.gradient_bytes, args.nodes, rate)
    print(f"\n{rate}\n{markdown_table(results.table(found, cases, limits))}", flush=True)
    return found


def keep(found: Sequence[Results], args: argparse.Namespace) -> None:
    """Write the measurements and the settings to the JSON file."""
    settings = {name: str(value) for name, value in vars(args).items()}
    runs = {
        one.rate: {name: [vars(run) for run in own] for name, own in one.runs.items()}
        for one in found
    }
    text = json.dumps({"settings": settings, "runs": runs}, indent=1)
    args.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    cli.run(main)
