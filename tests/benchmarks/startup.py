"""Seconds from the command to the first step: `launch/submit.py` beside torchrun by itself.

    python -m tests.benchmarks.startup [--rounds 5]

Both start the same worker with the same flags, four of them on this machine, in turns. And how
soon `--help` and `--dry-run` have said what they say.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from configs.plugins import REPOSITORY
from tests.benchmarks.results import Spread, aligned

WORKERS = 4
POLL_S = 0.01
WORK = ["--task=synthetic", "--max-steps=3", "--evaluate=never", "--no-save-model", "--quiet"]
SUBMIT = [str(REPOSITORY / "launch" / "submit.py"), "--launcher=local"]
ONE_NODE = [*SUBMIT, "--nodes=1", f"--nproc-per-node={WORKERS}"]
TORCHRUN = "torchrun"
WAYS = {
    TORCHRUN: ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}",
               "-m", "train.worker"],
    "submit.py, one node of four": ONE_NODE,
    "submit.py, four nodes of one": [*SUBMIT, f"--nodes={WORKERS}"],
}  # fmt: skip
ANSWERS = {"submit.py --help": ["--help"], "submit.py --dry-run": ["--nodes=4", "--dry-run"]}
MOST_OF_TORCHRUN, MOST_ANSWER_S = 1.1, 0.3
Seconds = dict[str, list[float]]  # of each round, by what was timed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="starts of each kind")
    found = measured(parser.parse_args().rounds)
    head = ["", "wanted", "reached", ""]
    print(aligned([head, *([row[0], *row[2:]] for row in table(found))]))
    return 0


def measured(rounds: int) -> Seconds:
    """All in turns; a round before the first one warms up the file cache."""
    found: Seconds = {what: [] for what in (*WAYS, *ANSWERS)}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            seconds = {
                way: to_first_step(command, Path(folder) / f"{number}-{at}")
                for at, (way, command) in enumerate(WAYS.items())
            }
            seconds |= {what: to_answer(words) for what, words in ANSWERS.items()}
            for what in found if number else ():
                found[what].append(seconds[what])
    return found


def table(found: Seconds) -> list[list[str]]:
    """Rows of the benchmark's targets; of four nodes' agents on one machine nothing is wanted."""
    rows = []
    for way in WAYS:
        pairs = zip(found[way], found[TORCHRUN], strict=True)
        ratio = Spread.of([one / other for one, other in pairs])
        wanted, verdict = "", ""
        if WAYS[way] is ONE_NODE:
            wanted = f"<= {MOST_OF_TORCHRUN:.2f} x"
            verdict = "met" if ratio.mean <= MOST_OF_TORCHRUN else "missed"
        reached = f"{ratio.text(2)} ({Spread.of(found[way]).text(2)} s)"
        rows.append([f"{way}: to the first step, of torchrun's", "", wanted, reached, verdict])
    for what in ANSWERS:
        spread = Spread.of(found[what])
        verdict = "met" if spread.mean <= MOST_ANSWER_S else "missed"
        wanted, reached = f"<= {MOST_ANSWER_S} s", f"{spread.text(2)} s"
        rows.append([f"{what}: its answer", "", wanted, reached, verdict])
    return rows


def to_answer(words: list[str]) -> float:
    """Until the command has said what it has to say."""
    started = time.perf_counter()
    command = [sys.executable, *SUBMIT, *words]
    subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def to_first_step(command: list[str], logs: Path, env: Mapping[str, str] | None = None) -> float:
    """Until the first record of a step is on the disk; the run is waited for."""
    words = [sys.executable, *command, *WORK, f"--logs-dir={logs}", "--run-id=run"]
    started = time.perf_counter()
    env = env or {**os.environ, "OMP_NUM_THREADS": "1"}
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
