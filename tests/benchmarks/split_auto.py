"""What `--split auto` gains where one of two nodes has half of its core: even and auto in turns.

    python -m tests.benchmarks.split_auto [--rounds 3] [--figure docs/figures/split-auto.svg]

On the testbed (as root): two nodes with a core each; on node 1 a busy loop takes its half. Prints
samples per second of each run, their ratio, and the sum of the speeds at which its ranks computed,
without what they waited for: more is not to be had.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tests.cluster.testbeds import REPOSITORY, TESTBED, Cluster, bring_up, take_down

SSH = str(REPOSITORY / "launch" / "ssh.sh")
BUSY = "import time\nend = time.monotonic() + 1800\nwhile time.monotonic() < end: pass"
FLAGS = ["--task", "quickstart", "--epochs", "4", "--evaluate", "never", "--no-save-model"]
FLAGS += ["--dropout", "0"]  # drawn by each rank for its own samples, so another split draws others
BATCH_SIZE = 1024  # so that a step is long beside the time slices of the two programs
EVEN, AUTO = "#0072B2", "#D55E00"

Runs = dict[str, list[dict[str, Any]]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind")
    parser.add_argument("--figure", type=Path, help="draw it into this SVG file")
    args = parser.parse_args()
    cluster = bring_up("--nodes", "2")
    busy = subprocess.Popen(
        [sys.executable, TESTBED, "exec", "node1", "--", sys.executable, "-c", BUSY]
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            found: Runs = {"even": [], "auto": []}
            for number in range(args.rounds):
                for split, runs in found.items():
                    runs.append(measured(cluster, split, Path(folder) / f"{split}{number}"))
            report(found)
            if args.figure:
                draw(found, args.figure)
    finally:
        busy.kill()
        busy.wait()
        take_down()
    return 0


def measured(cluster: Cluster, split: str, folder: Path) -> dict[str, Any]:
    """One run: samples per second of its later epochs, its losses, and what its plan allows."""
    command = [SSH, ",".join(cluster.hosts), "--ssh-config", str(cluster.ssh_config), *FLAGS]
    batch = ["--batch-size", str(BATCH_SIZE)]
    done = cluster.run(*command, *batch, "--split", split, "--logs-dir", str(folder), timeout_s=600)
    if done.returncode:
        sys.exit(f"{split}: {done.stderr}")
    ranks = [read(path) for path in sorted(folder.glob("*/metrics/rank_*.jsonl"))]
    steps = [one for one in ranks[0] if one["kind"] == "step"]
    later = [one for one in steps if counts(one)]
    plans = [one for one in ranks[0] if one["kind"] == "split"]
    return {
        "rate": sum(one["samples"] for one in later) / sum(one["step_s"] for one in later),
        "losses": [one["loss"] for one in steps],
        "allowed": sum(map(own_rate, ranks)),
        "parts": plans[-1]["parts"] if plans else [],
        "predicted_gain": plans[-1]["predicted_gain"] if plans else 1.0,
    }


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def counts(one: dict[str, Any]) -> bool:
    return one["kind"] == "step" and one["epoch"] > 1 and one["samples"] == BATCH_SIZE


def own_rate(records: list[dict[str, Any]]) -> float:
    """Samples per second at which a rank computed in this run, whatever it waited for."""
    steps = [one for one in records if counts(one)]
    waited_s = sum(one["sync_s"] + one["comm_s"] - one["overlapped_s"] for one in steps)
    computed_s = sum(one["step_s"] for one in steps) - waited_s
    return sum(one["local_samples"] for one in steps) / computed_s


def report(found: Runs) -> None:
    rates = {split: [one["rate"] for one in runs] for split, runs in found.items()}
    for split, own in rates.items():
        spread = stdev(own) if len(own) > 1 else 0.0
        print(f"{split:5} {fmean(own):8.1f} samples/s  (+- {spread:.1f} over {len(own)} runs)")
    ratios = [auto / even for auto, even in zip(rates["auto"], rates["even"], strict=True)]
    print(f"auto / even {fmean(ratios):8.2f}  ({', '.join(f'{one:.2f}' for one in ratios)})")
    for one in found["auto"]:
        print(
            f"parts {one['parts']}, predicted gain {one['predicted_gain']:.2f}; its ranks computed "
            f"{one['allowed']:.0f} samples/s: got {one['rate'] / one['allowed']:.2f} of it"
        )
    pairs = zip(found["even"][0]["losses"], found["auto"][0]["losses"], strict=True)
    print(f"largest difference of a loss: {max(abs(a - b) for a, b in pairs):.1e}")


def draw(found: Runs, path: Path) -> None:
    """Speeds beside each other, and the two loss curves on top of each other."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "muster"
    from matplotlib import pyplot

    figure, (speed, loss) = pyplot.subplots(1, 2, figsize=(8, 3), width_ratios=(1, 1.6))
    names, colours = list(found), [EVEN, AUTO]
    rates = [[one["rate"] for one in runs] for runs in found.values()]
    bars = speed.bar(names, [fmean(own) for own in rates], color=colours, width=0.6)
    speed.bar_label(bars, fmt="%.0f", label_type="center", color="white", fontweight="bold")
    for at, own in enumerate(rates):
        speed.scatter([at] * len(own), own, s=10, color="black", zorder=3)
    allowed = fmean(one["allowed"] for one in found["auto"])
    speed.axhline(allowed, color="grey", linestyle="--")
    speed.text(-0.35, allowed, "the ranks' own speeds", va="bottom", fontsize=8, color="dimgrey")
    speed.set(
        ylabel="samples per second", ylim=(0, allowed * 1.15), title="One core, and half of one"
    )
    for name, colour, width in zip(names, colours, (4, 1.2), strict=True):
        losses = found[name][0]["losses"]
        loss.plot(range(1, len(losses) + 1), losses, color=colour, linewidth=width, label=name)
    loss.set(xlabel="step", ylabel="loss", title="The same losses")
    loss.legend(frameon=False)
    for axes in (speed, loss):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
