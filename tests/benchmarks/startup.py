"""Seconds from the command to the first step: `launch/submit.py` beside torchrun by itself.

    python -m tests.benchmarks.startup [--rounds 5]

Both start the same worker with the same flags, four of them on this machine, in turns.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev

from configs.plugins import REPOSITORY

WORKERS = 4
POLL_S = 0.01
WORK = ["--task=synthetic", "--max-steps=3", "--evaluate=never", "--no-save-model", "--quiet"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
SUBMIT = [str(REPOSITORY / "launch" / "submit.py"), "--launcher=local"]
WAYS = {
    "torchrun": [*TORCHRUN, "-m", "train.worker"],
    "submit, one node of four": [*SUBMIT, "--nodes=1", f"--nproc-per-node={WORKERS}"],
    "submit, four nodes of one": [*SUBMIT, f"--nodes={WORKERS}"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="starts of each kind")
    rounds = parser.parse_args().rounds
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for at, (way, command) in enumerate(WAYS.items()):
                seconds = to_first_step(command, Path(folder) / f"{number}-{at}")
                if number:  # the first round warms up the file cache
                    found[way].append(seconds)
    for way, own in found.items():
        ratios = [one / other for one, other in zip(own, found["torchrun"], strict=True)]
        spread = stdev(own) if len(own) > 1 else 0.0
        print(f"{way:26} {fmean(own):6.2f} s (+- {spread:.2f})  {fmean(ratios):5.2f} of torchrun")
    return 0


def to_first_step(command: list[str], logs: Path) -> float:
    """Until the first record of a step is on the disk; the run is waited for."""
    words = [sys.executable, *command, *WORK, f"--logs-dir={logs}", "--run-id=run"]
    started = time.perf_counter()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, cwd=REPOSITORY, env=env, stdin=subprocess.DEVNULL)
    records = logs / "run" / "metrics" / "rank_00000.jsonl"
    first_s = None
    while process.poll() is None:
        if first_s is None and records.exists() and '"kind": "step"' in records.read_text():
            first_s = time.perf_counter() - started
        time.sleep(POLL_S)
    if process.returncode or first_s is None:
        sys.exit(f"{' '.join(words)}: exit code {process.returncode}")
    return first_s


if __name__ == "__main__":
    sys.exit(main())
