"""Measure the seconds from a fault to the next step on the testbed, as in docs/monitoring.md.

    python -m tests.benchmarks.recovery [--times 7] [--fault "worker killed"] [--way ssh]
        [--program trainer] [--workers torchrun preload] [--against COMMIT]

Four workers run on four nodes, which share this machine's cores; the fault hits one of them. Unless
faults, ways or programs are given, all of them are measured. Run it as root, on a machine that does
nothing else.

The benchmark takes the time itself: from the moment after the fault until the first step of the
next attempt is in the run's files.
With `--against`, that commit meets the same fault on the same testbed, in turns with this tree.
"""

import argparse
import os
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.benchmarks.trees import Tree, add_flag, compared, in_turns, trees
from tests.cluster.recoveries import ANY_THREE, FAULTS, PROGRAMS, TIMED, WAYS, leave_nothing
from tests.cluster.testbeds import Cluster, bring_up, take_down
from tests.cluster.ways import Run

WORKERS = ("torchrun", "preload")
LOOK_S = 0.01
LIMIT_S = 300.0


class Case(NamedTuple):
    """A fault, and how the run that it hits is started."""

    fault: str
    way: str
    program: str
    workers: str


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=7, help="of each, whose median is shown")
    for flag, known in (("fault", TIMED), ("way", WAYS), ("program", PROGRAMS)):
        parser.add_argument(f"--{flag}", nargs="+", choices=known, default=known)
    parser.add_argument("--workers", nargs="+", choices=WORKERS, default=WORKERS[:1])
    add_flag(parser)
    asked = parser.parse_args()
    try:
        with trees(asked.against) as which:
            for one in product(asked.fault, asked.way, asked.program, asked.workers):
                case = Case(*one)
                found = in_turns(which, asked.times, lambda tree, case=case: measured(tree, case))
                print("\n".join(rows(case, found)), flush=True)
    finally:
        take_down()
    return 0


def measured(tree: Tree, case: Case) -> float:
    """Return the seconds that one recovery takes."""
    cluster = bring_up("--nodes", "4")  # a new one if the last fault has killed a part of it
    program = PROGRAMS[case.program]()
    program.checkout = tree.root
    program.task = "synthetic"

    def way(cluster: Cluster, nodes: int, *flags: str) -> list[str]:
        return tree.command(WAYS[case.way](cluster, nodes, *flags))

    with tempfile.TemporaryDirectory() as folder:
        flags = (*ANY_THREE, "1", "--workers", case.workers)
        run = Run(cluster, way, Path(folder) / "runs", *flags, program=program)
        try:
            return to_next_step(run, case.fault, program.step)
        finally:
            leave_nothing(run)


def to_next_step(run: Run, fault: str, step: bytes) -> float:
    """Return the seconds from the fault until any rank of the next attempt has recorded a step."""
    before = {path.stat().st_ino for path in run.outputs()}
    try:
        FAULTS[fault].hit(run)
        begun = time.monotonic()
        while not any(_has(path, step, before) for path in run.outputs()):
            assert not run.is_over() and time.monotonic() - begun < LIMIT_S, run.printed()
            time.sleep(LOOK_S)
        return time.monotonic() - begun
    finally:
        FAULTS[fault].after(run)


def _has(path: Path, step: bytes, before: set[int]) -> bool:
    """Whether a file has a step and is not the earlier attempt's."""
    try:
        return path.stat().st_ino not in before and step in path.read_bytes()
    except FileNotFoundError:  # it is just being moved away
        return False


def rows(case: Case, seconds_by_tree: dict[str, list[float]]) -> list[str]:
    """Return lines of a Markdown table: each tree's median and values, and the machine's load."""
    title = ", ".join(case)
    lines = []
    for name, seconds in seconds_by_tree.items():
        each = ", ".join(f"{one:.1f}" for one in seconds)
        load = f"{os.getloadavg()[0]:.1f}"
        lines.append(f"| {title} | {name} | {median(seconds):.2f} | {each} | {load} |")
    if ratio := compared(seconds_by_tree).get("ratio"):
        lines.append(f"| {title} | ratio | {ratio} | | |")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
