"""What `--split auto` gains where one of two nodes has half of its core: even and auto in turns.

    python -m tests.benchmarks.split_auto [--rounds 3] [--figure docs/figures/split-auto.svg]

On the testbed (as root): two nodes with a core each; on node 1 a busy loop takes its half. Prints
samples per second of each run, their ratio, and what the measured speeds allow.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tests.cluster.beds import REPOSITORY, TESTBED, TestBed, bring_up, take_down
from train.balance.model import Cost, best_weights, compute_s

SSH = str(REPOSITORY / "launch" / "ssh.sh")
BUSY = "import time\nend = time.monotonic() + 1800\nwhile time.monotonic() < end: pass"
FLAGS = ["--task", "quickstart", "--epochs", "4", "--evaluate", "never", "--no-save-model"]
FLAGS += ["--dropout", "0"]  # drawn by each rank for its own samples, so another split draws others
BATCH_SIZE = 256
EVEN, AUTO = "#0072B2", "#D55E00"

Runs = dict[str, list[dict[str, Any]]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind")
    parser.add_argument("--figure", type=Path, help="draw it into this SVG file")
    args = parser.parse_args()
    bed = bring_up("--nodes", "2")
    busy = subprocess.Popen(
        [sys.executable, TESTBED, "exec", "node1", "--", sys.executable, "-c", BUSY]
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            found: Runs = {"even": [], "auto": []}
            for number in range(args.rounds):
                for split, runs in found.items():
                    runs.append(measured(bed, split, Path(folder) / f"{split}{number}"))
            report(found)
            if args.figure:
                draw(found, args.figure)
    finally:
        busy.kill()
        busy.wait()
        take_down()
    return 0


def measured(bed: TestBed, split: str, folder: Path) -> dict[str, Any]:
    """One run: samples per second of its later epochs, its losses, and what its plan allows."""
    command = [SSH, ",".join(bed.hosts), "--ssh-config", str(bed.ssh_config), *FLAGS]
    batch = ["--batch-size", str(BATCH_SIZE)]
    done = bed.run(*command, *batch, "--split", split, "--logs-dir", str(folder), timeout_s=600)
    if done.returncode:
        sys.exit(f"{split}: {done.stderr}")
    (path,) = folder.glob("*/metrics/rank_00000.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [one for one in records if one["kind"] == "step"]
    later = [one for one in steps if one["epoch"] > 1 and one["samples"] == BATCH_SIZE]
    plans = [one for one in records if one["kind"] == "split"]
    rate = sum(one["samples"] for one in later) / sum(one["step_s"] for one in later)
    found = {"rate": rate, "losses": [one["loss"] for one in steps]}
    if plans:
        plan = plans[-1]
        rows = zip(plan["alpha_s"], plan["beta_s"], strict=True)
        costs = [Cost(alpha_s, beta_s) for alpha_s, beta_s in rows]
        best_s = compute_s(costs, best_weights(costs, BATCH_SIZE), BATCH_SIZE)
        found |= {"parts": plan["parts"], "predicted_gain": plan["predicted_gain"]}
        found["allowed"] = BATCH_SIZE / (best_s + plan["network_s"])
    return found


def report(found: Runs) -> None:
    rates = {split: [one["rate"] for one in runs] for split, runs in found.items()}
    for split, own in rates.items():
        spread = stdev(own) if len(own) > 1 else 0.0
        print(f"{split:5} {fmean(own):8.1f} samples/s  (+- {spread:.1f} over {len(own)} runs)")
    ratios = [auto / even for auto, even in zip(rates["auto"], rates["even"], strict=True)]
    print(f"auto / even {fmean(ratios):8.2f}  ({', '.join(f'{one:.2f}' for one in ratios)})")
    for one in found["auto"]:
        print(
            f"parts {one['parts']}, predicted gain {one['predicted_gain']:.2f}; measured speeds "
            f"allow {one['allowed']:.0f} samples/s: got {one['rate'] / one['allowed']:.2f} of it"
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
    speed.bar_label(bars, fmt="%.0f", padding=2)
    for at, own in enumerate(rates):
        speed.scatter([at] * len(own), own, s=10, color="black", zorder=3)
    allowed = fmean(one["allowed"] for one in found["auto"])
    speed.axhline(allowed, color="grey", linestyle="--")
    speed.text(-0.35, allowed, "measured speeds allow", va="bottom", fontsize=8, color="grey")
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
