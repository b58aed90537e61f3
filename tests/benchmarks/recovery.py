"""Seconds from a fault to the next step on the testbed, by part: docs/monitoring.md.

    python -m tests.benchmarks.recovery [--times 5] [--fault "worker killed"] [--way ssh]
        [--program trainer]

Four workers on four nodes that share this machine's cores, one of which is hurt; the fault, the way
and the program are all of them where none is named. Run it as root, on a machine that does nothing
else.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median

from tests.cluster.recoveries import FAULTS, PROGRAMS, TIMED, WAYS, begin, leave_nothing, recover
from tests.cluster.testbeds import bring_up, take_down


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="of each, whose median is shown")
    for flag, known in (("fault", TIMED), ("way", WAYS), ("program", PROGRAMS)):
        parser.add_argument(f"--{flag}", nargs="+", choices=known, default=known)
    asked = parser.parse_args()
    try:
        for fault, way, program in product(asked.fault, asked.way, asked.program):
            found = [measured(way, program, fault) for _ in range(asked.times)]
            print(row(f"{fault}, {way}, {program}", found), flush=True)
    finally:
        take_down()
    return 0


def measured(way: str, program: str, fault: str) -> dict[str, float]:
    """The parts of one recovery, and the total."""
    cluster = bring_up("--nodes", "4")  # anew, where the last fault has killed a part of it
    with tempfile.TemporaryDirectory() as folder:
        run = begin(cluster, way, PROGRAMS[program](), Path(folder) / "runs", restarts=1)
        record = recover(run, FAULTS[fault])
        leave_nothing(run)
    return {"total": record["total_s"], **record["parts_s"]}


def row(title: str, found: Sequence[dict[str, float]]) -> str:
    """A line of a table in Markdown: the medians, with the totals and the machine's load beside."""
    medians = {name: median(one[name] for one in found) for name in found[0]}
    shown = " ".join(f"{name} {seconds:.1f}" for name, seconds in medians.items())
    totals = ", ".join(f"{one['total']:.1f}" for one in found)
    return f"| {title} | {shown} | {totals} | {os.getloadavg()[0]:.1f} |"


if __name__ == "__main__":
    raise SystemExit(main())
