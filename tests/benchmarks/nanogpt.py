"""A GPT trained by nanoGPT's loop: DDP as it comes, with smaller buckets, and `muster.sync`.

    python -m tests.benchmarks.nanogpt [--rate 1gbit] [--rounds 3]

One process on each node, in turns; the losses of all must be the same. Prints the median seconds of
a step, and how they compare.
"""

import argparse
import sys
from collections.abc import Sequence
from statistics import median

from configs import cli
from tests.benchmarks import places, results
from tests.benchmarks.places import Steps
from tests.benchmarks.results import WARM_UP, Spread

OURS = "muster"
MOST = {"ddp": 0.82, "ddp_4mib": 1.02}  # of their time, that ours is to take
Runs = dict[str, list[Steps]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", default="1gbit", help=f"of the links, or {places.LOOPBACK}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15, help="of each run")
    parser.add_argument("--nodes", type=int, default=4)
    args = parser.parse_args(argv)
    runs = measured(args.rounds, rate=args.rate, nodes=args.nodes, steps=args.steps)
    print(results.aligned(table(runs)))
    return 0 if gap(runs) <= results.SAME_LOSS else 1


def measured(rounds: int, rate: str = "1gbit", nodes: int = 4, steps: int = 15) -> Runs:
    """Every way once in each round, one thread for each worker."""
    found: Runs = {name: [] for name in (*MOST, OURS)}
    with places.place(rate, nodes, threads=1) as place:
        for number in range(rounds):
            for name, own in found.items():
                own.append(place.peer("nanogpt", ["--sync", name, "--steps", str(steps)]))
                step_s = _seconds(own)[-1]
                print(f"{rate} round {number + 1} nanoGPT, {name}: {step_s:.3f} s", file=sys.stderr)
    return found


def table(runs: Runs) -> list[list[str]]:
    """A row for each of them, the head first."""
    rows = [["nanoGPT's loop", "step, s", "muster.sync takes", "wanted", ""]]
    same = gap(runs) <= results.SAME_LOSS
    for name, own in runs.items():
        seconds = _seconds(own)
        row = [name, Spread.of(seconds).text(), "", "", ""]
        if name in MOST:
            pairs = zip(_seconds(runs[OURS]), seconds, strict=True)
            ratio = Spread.of([ours / other for ours, other in pairs])
            verdict = "met" if ratio.mean <= MOST[name] else "missed"
            row[2:] = [f"{ratio.text(2)} of it", f"<= {MOST[name]}", verdict]
            if not same:
                row[4] = "missed: other loss"
        rows.append(row)
    return rows


def gap(runs: Runs) -> float:
    """The largest difference of a loss from DDP's."""
    want = runs["ddp"][0].losses
    every = [run.losses for own in runs.values() for run in own]
    return max(abs(one - other) for own in every for one, other in zip(own, want, strict=True))


def _seconds(own: Sequence[Steps]) -> list[float]:
    return [median(one.step_s[WARM_UP:]) for one in own]


if __name__ == "__main__":
    cli.run(main)
