"""What grows with the number of ranks: seconds of a step, of the metric, and memory.

    python -m tests.benchmarks.scale [--ranks 1,2,4,8,16] [--weak] [--exact] [--json FILE]

All ranks are on this machine, so computing does not get faster with them beyond its cores; what is
looked at is what each further rank adds. With `--weak` the batch grows with the ranks, so that the
memory of one of them (resident, libraries included) is comparable with that of a single process.
The heap's waste between blocks differs by 100 MiB and more from run to run: with `--exact` large
blocks go back to the system at once, as the C library has it where MALLOC_MMAP_THRESHOLD_ is set.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from configs.plugins import REPOSITORY
from tests.benchmarks.results import aligned

MODEL = str(REPOSITORY / "configs" / "models" / "bert-mini.json")
BATCH_SIZE, STEPS, SAMPLES = 32, 6, 512
FLAGS = [
    "--launcher=local", "--nodes=1", "--task=bsc_benchmark", "--no-save-model", "--quiet",
    "--threads=1", "--run-id=run", f"--max-steps={STEPS}", f"--eval-samples={SAMPLES}",
    "--evaluate=end", "--pad=max_length", "--no-length-balance",  # as many tokens in every mode
]  # fmt: skip
MIB = 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="1,2,4,8,16")
    parser.add_argument("--sync", default="all_reduce,ddp")
    parser.add_argument("--model", default=MODEL, help="a configuration file of a BERT")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, help="of all ranks together")
    parser.add_argument("--weak", action="store_true", help="of each rank instead")
    parser.add_argument("--exact", action="store_true", help="without the waste of the heap")
    parser.add_argument("--rounds", type=int, default=1, help="each kind once in every round")
    parser.add_argument("--json", type=Path, help="write the figures into this file")
    args = parser.parse_args()
    counts = [int(word) for word in args.ranks.split(",")]
    kinds = [(mode, ranks) for mode in args.sync.split(",") for ranks in counts if ranks > 1]
    kinds = [("single", 1)] * (1 in counts) + kinds
    rows = [
        measured(mode, ranks, args.model, args.batch_size * (ranks if args.weak else 1), args.exact)
        for _ in range(args.rounds)
        for mode, ranks in kinds
    ]
    print(aligned([list(rows[0]), *([_text(one) for one in row.values()] for row in rows)]))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def measured(mode: str, ranks: int, model: str, batch_size: int, exact: bool) -> dict[str, Any]:
    """One run; seconds are the median over steps of rank 0, memory is that of the largest rank."""
    env = {**os.environ, **({"MALLOC_MMAP_THRESHOLD_": str(2**16)} if exact else {})}
    with tempfile.TemporaryDirectory() as logs:
        own = [f"--nproc-per-node={ranks}", f"--sync={mode}", f"--model={model}"]
        own += [f"--batch-size={batch_size}", f"--train-samples={batch_size * STEPS}"]
        submit = [sys.executable, str(REPOSITORY / "launch" / "submit.py"), f"--logs-dir={logs}"]
        done = subprocess.run([*submit, *FLAGS, *own], cwd=REPOSITORY, env=env, check=False)
        if done.returncode:
            sys.exit(f"{mode} on {ranks} ranks: exit code {done.returncode}")
        folder = Path(logs, "run")
        lines = (folder / "metrics" / "rank_00000.jsonl").read_text().splitlines()
        ends = [json.loads(path.read_text()) for path in (folder / "exits").glob("rank_*.json")]
    records = [json.loads(line) for line in lines]
    steps = [one for one in records if one["kind"] == "step"][2:]
    (evaluated,) = (one for one in records if one["kind"] == "eval")
    return {
        "mode": mode,
        "ranks": ranks,
        "step_s": median(one["step_s"] for one in steps),
        "sync_s": median(one["sync_s"] for one in steps),
        "metric_s": evaluated["metric_s"],
        "agree_s": evaluated["sync_s"],
        "peak_mib": max(end["peak_memory_bytes"] for end in ends) / MIB,
    }


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
