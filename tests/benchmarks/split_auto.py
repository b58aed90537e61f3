"""What `--split auto` gains where one of two nodes has half of its core: even and auto in turns.

    python -m tests.benchmarks.split_auto [--rounds 3]

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

from tests.cluster.beds import REPOSITORY, TESTBED, TestBed, bring_up, take_down

SSH = str(REPOSITORY / "launch" / "ssh.sh")
BUSY = "import time\nend = time.monotonic() + 1800\nwhile time.monotonic() < end: pass"
FLAGS = ["--task", "quickstart", "--epochs", "2", "--evaluate", "never", "--no-save-model"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind")
    rounds = parser.parse_args().rounds
    bed = bring_up("--nodes", "2")
    busy = subprocess.Popen(
        [sys.executable, TESTBED, "exec", "node1", "--", sys.executable, "-c", BUSY]
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = {"even": [], "auto": []}
            for number in range(rounds):
                for split, runs in found.items():
                    runs.append(measured(bed, split, Path(folder) / f"{split}{number}"))
            report(found)
    finally:
        busy.kill()
        busy.wait()
        take_down()
    return 0


def measured(bed: TestBed, split: str, folder: Path) -> dict:
    """One run: samples per second of its second epoch, its losses, and its first plan."""
    command = [SSH, ",".join(bed.hosts), "--ssh-config", str(bed.ssh_config), *FLAGS]
    done = bed.run(*command, "--split", split, "--logs-dir", str(folder), timeout_s=600)
    if done.returncode:
        sys.exit(f"{split}: {done.stderr}")
    (path,) = folder.glob("*/metrics/rank_00000.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [one for one in records if one["kind"] == "step"]
    second = [one for one in steps if one["epoch"] == 2]
    plans = [one for one in records if one["kind"] == "split"]
    rate = sum(one["samples"] for one in second) / sum(one["step_s"] for one in second)
    return {"rate": rate, "losses": [one["loss"] for one in steps], "plan": plans and plans[-1]}


def report(found: dict[str, list[dict]]) -> None:
    rates = {split: [one["rate"] for one in runs] for split, runs in found.items()}
    for split, own in rates.items():
        spread = stdev(own) if len(own) > 1 else 0.0
        print(f"{split:5} {fmean(own):8.1f} samples/s  (+- {spread:.1f} over {len(own)} runs)")
    ratios = [auto / even for auto, even in zip(rates["auto"], rates["even"], strict=True)]
    print(f"ratio {fmean(ratios):8.2f}  ({', '.join(f'{one:.2f}' for one in ratios)})")
    for one in found["auto"]:
        plan = one["plan"]
        print(f"parts {plan['parts']}, predicted gain {plan['predicted_gain']:.2f}")
    pairs = zip(found["even"][0]["losses"], found["auto"][0]["losses"], strict=True)
    print(f"largest difference of a loss: {max(abs(a - b) for a, b in pairs):.1e}")


if __name__ == "__main__":
    sys.exit(main())
