"""What compression and local SGD save where the network is slow, and what they cost in accuracy.

    python -m tests.benchmarks.compress [--seeds 3] [--rate 100mbit] [--launcher local]

On the testbed (as root): two nodes with a core each, at 100 Mbit/s. Every way trains quickstart's
task with a wider BERT for the same epochs from the same seeds. Prints held-out accuracy, seconds of
all steps, their ratio to plain DDP's, bytes that a step sent, and how far a loss was from DDP's.
`--launcher local` runs it on this machine alone, to see that it runs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tests.cluster.testbeds import REPOSITORY, bring_up, take_down

SSH, SUBMIT = str(REPOSITORY / "launch" / "ssh.sh"), str(REPOSITORY / "launch" / "submit.py")
SMALL_BERT = REPOSITORY / "configs" / "models" / "small-bert.json"
LOCAL = ["--sync", "local_sgd", "--sync-every"]
DILOCO = ["--outer-lr", "0.7", "--outer-momentum", "0.9"]
TOPK = ["--sync", "all_reduce", "--compress", "topk"]
WAYS = {
    "ddp": ["--sync", "ddp"],
    **{f"ddp, {way}": ["--sync", "ddp", "--compress", way] for way in ("fp16", "bf16", "powersgd")},
    "all_reduce": ["--sync", "all_reduce"],
    **{
        f"all_reduce, {way}": ["--sync", "all_reduce", "--compress", way]
        for way in ("fp16", "bf16", "int8", "powersgd", "topk")
    },
    "all_reduce, topk 5 %": [*TOPK, "--compress-share", "0.05"],
    **{f"local_sgd, {every} steps": [*LOCAL, every] for every in ("4", "16")},
    **{f"DiLoCo, {every} steps": [*LOCAL, every, *DILOCO] for every in ("4", "16")},
}
MOST_OF_DDP = 0.2
Start = Callable[..., subprocess.CompletedProcess[str]]
Runs = dict[str, list[dict[str, Any]]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="runs of each way")
    parser.add_argument("--rate", default="100mbit", help="of each node's link")
    parser.add_argument("--epochs", default="3")
    parser.add_argument("--epochs-of-others", help="of all ways but plain DDP: time to accuracy")
    parser.add_argument("--batch-size", default="64", help="of both workers together")
    parser.add_argument("--lr", default="1e-3", help="learning rate")
    parser.add_argument("--width", type=int, default=256, help="the model's hidden size")
    parser.add_argument("--train-samples", help="the first of the task's samples only")
    parser.add_argument("--launcher", choices=["testbed", "local"], default="testbed")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY")
    args = parser.parse_args()
    ways = list(dict.fromkeys(["ddp", *args.ways]))
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "wide-bert.json")
        model.write_text(json.dumps(wider(args.width)), encoding="utf-8")
        flags = ["--task", "quickstart", "--model", str(model)]
        flags += ["--batch-size", args.batch_size, "--lr", args.lr]
        flags += ["--dropout", "0", "--evaluate", "end", "--no-save-model"]
        if args.train_samples:
            flags += ["--train-samples", args.train_samples]
        found: Runs = {way: [] for way in ways}
        with launcher(args) as start:
            for seed in range(args.seeds):
                for way in ways:
                    logs = Path(folder, f"{way}-{seed}".replace(" ", ""))
                    own = ["--seed", str(seed), "--logs-dir", str(logs), *WAYS[way]]
                    more = None if way == "ddp" else args.epochs_of_others
                    own += ["--epochs", more or args.epochs]
                    done = start(*flags, *own)
                    if done.returncode:
                        sys.exit(f"{way}: {done.stderr}")
                    found[way].append(measured(logs))
                    print(f"seed {seed}, {way}: {lines(found[way][-1])}", flush=True)
    report(found)
    return 0


def wider(width: int) -> dict[str, Any]:
    """The small BERT's settings with other sizes."""
    settings: dict[str, Any] = json.loads(SMALL_BERT.read_text(encoding="utf-8"))
    return {**settings, "hidden_size": width, "intermediate_size": 4 * width}


@contextmanager
def launcher(args: argparse.Namespace) -> Any:
    """What starts a run with its flags on two nodes."""
    if args.launcher == "local":

        def here(*flags: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, SUBMIT, "--launcher", "local", "--nodes", "2", *flags]
            return subprocess.run(command, capture_output=True, text=True, timeout=1800)

        yield here
        return
    cluster = bring_up("--nodes", "2", "--rate", args.rate)

    def there(*flags: str) -> subprocess.CompletedProcess[str]:
        where = [",".join(cluster.hosts), "--ssh-config", str(cluster.ssh_config)]
        return cluster.run(SSH, *where, *flags, timeout_s=1800)

    try:
        yield there
    finally:
        take_down()


def measured(logs: Path) -> dict[str, Any]:
    """One run: its accuracy, losses and seconds; the first step, which warms up, does not count."""
    (path,) = logs.glob("*/metrics/rank_00000.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [one for one in records if one["kind"] == "step"]
    (evaluation,) = [one for one in records if one["kind"] == "eval"]
    return {
        "accuracy": evaluation["metrics"]["accuracy"],
        "losses": [one["loss"] for one in steps],
        "seconds": sum(one["step_s"] for one in steps[1:]),
        "sent": fmean(one["payload_bytes"] for one in steps[1:]),
    }


def lines(one: dict[str, Any]) -> str:
    return f"accuracy {one['accuracy']:.3f}, {one['seconds']:.1f} s"


def report(found: Runs) -> None:
    """A Markdown table, a line for each way; then which of them reach the target."""
    print("| way | accuracy | seconds | of DDP's | MB a step | largest difference of a loss |")
    print("|---|---|---|---|---|---|")
    of_ddp = [one["accuracy"] for one in found["ddp"]]
    enough = fmean(of_ddp) - (stdev(of_ddp) if len(of_ddp) > 1 else 0.0)
    reached = []
    for way, runs in found.items():
        pairs = list(zip(runs, found["ddp"], strict=True))
        ratio = fmean(one["seconds"] / exact["seconds"] for one, exact in pairs)
        gap = max(
            abs(a - b)
            for one, exact in pairs
            for a, b in zip(one["losses"], exact["losses"], strict=False)
        )
        accuracy = spread([one["accuracy"] for one in runs], 3)
        seconds = spread([one["seconds"] for one in runs], 1)
        sent = fmean(one["sent"] for one in runs) / 1e6
        print(f"| {way} | {accuracy} | {seconds} | {ratio:.2f} | {sent:.2f} | {gap:.1e} |")
        if ratio <= MOST_OF_DDP and fmean(one["accuracy"] for one in runs) >= enough:
            reached.append(way)
    wanted = f"DDP's accuracy to a standard deviation in at most {MOST_OF_DDP} of its seconds"
    print(f"\n{wanted}: {', '.join(reached) or 'missed by all'}")


def spread(values: Sequence[float], digits: int) -> str:
    deviation = stdev(values) if len(values) > 1 else 0.0
    return f"{fmean(values):.{digits}f} ± {deviation:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
