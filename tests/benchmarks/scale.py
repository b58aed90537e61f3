"""What grows with the number of ranks: seconds of a step, of the metric, and memory.

    python -m tests.benchmarks.scale [--ranks 1,2,4,8,16] [--weak] [--json FILE]

All ranks are on this machine, so computing does not get faster with them beyond its cores; what is
looked at is what each further rank adds. The metric is compared with `evaluate`'s accuracy as it is
commonly used: every rank gathers all predictions and counts them. With `--weak` the batch grows
with the ranks, so that the memory of one of them is comparable with that of a single process.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

from configs.plugins import REPOSITORY
from tests.benchmarks import local

MODEL = str(REPOSITORY / "configs" / "models" / "bert-mini.json")
BATCH_SIZE, STEPS, SAMPLES = 32, 6, 512
FLAGS = [f"--max-steps={STEPS}", f"--eval-samples={SAMPLES}", "--evaluate=end"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="1,2,4,8,16")
    parser.add_argument("--sync", default="all_reduce,ddp")
    parser.add_argument("--model", default=MODEL, help="a configuration file of a BERT")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, help="of all ranks together")
    parser.add_argument("--weak", action="store_true", help="of each rank instead")
    parser.add_argument("--json", type=Path, help="write the figures into this file")
    args = parser.parse_args()
    counts = [int(word) for word in args.ranks.split(",")]
    print("mode        ranks  step_s  sync_s  metric_s  agree_s  evaluate_s  peak_MiB")
    rows = []
    for mode in args.sync.split(","):
        for ranks in counts:
            batch_size = args.batch_size * (ranks if args.weak else 1)
            row = measured("single" if ranks == 1 else mode, ranks, args.model, batch_size)
            rows.append(row)
            print(
                "{mode:14} {ranks:2}  {step_s:6.3f}  {sync_s:6.3f}  {metric_s:8.5f}  "
                "{agree_s:7.4f}  {evaluate_s:10.3f}  {peak_mib:8.0f}".format(**row),
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def measured(mode: str, ranks: int, model: str, batch_size: int) -> dict[str, Any]:
    """One run; seconds are the median over steps of rank 0, memory is that of the largest rank."""
    words = [*FLAGS, f"--train-samples={batch_size * STEPS}"]
    with local.ran(mode, ranks, model, batch_size, words) as run:
        lines = (run / "metrics" / "rank_00000.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        peak_mib = max(local.peaks_mib(run))
    steps = [one for one in records if one["kind"] == "step"][2:]
    (evaluated,) = (one for one in records if one["kind"] == "eval")
    return {
        "mode": mode,
        "ranks": ranks,
        "step_s": median(one["step_s"] for one in steps),
        "sync_s": median(one["sync_s"] for one in steps),
        "metric_s": evaluated["metric_s"],
        "agree_s": evaluated["sync_s"],
        "evaluate_s": as_usual(ranks),
        "peak_mib": peak_mib,
    }


def as_usual(ranks: int) -> float:
    """Seconds of one rank in which it counts what all of them have gathered, with `evaluate`."""
    seconds = []
    for _ in range(3):
        metric = accuracy()
        started = time.perf_counter()
        for _ in range(ranks):
            metric.add_batch(predictions=[1] * SAMPLES, references=[1] * SAMPLES)
        metric.compute()
        seconds.append(time.perf_counter() - started)
    return fmean(seconds[1:])


def accuracy() -> Any:
    """What `evaluate.load("accuracy")` gives; that would ask the Hub for its few lines."""
    import datasets
    import evaluate
    from sklearn.metrics import accuracy_score

    datasets.disable_progress_bars()

    class Accuracy(evaluate.Metric):  # type: ignore[misc]
        def _info(self) -> Any:
            number = datasets.Value("int32")
            features = datasets.Features({"predictions": number, "references": number})
            return evaluate.MetricInfo(description="", citation="", features=features)

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            return {"accuracy": float(accuracy_score(references, predictions))}

    return Accuracy()


if __name__ == "__main__":
    sys.exit(main())
