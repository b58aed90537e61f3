"""What a run costs that does nothing: seconds of the processor, and seconds until it has started.

    python -m tests.benchmarks.idle [--times 7] [--nodes 16] [--nproc-per-node 4] [--seconds 60]
        [--against COMMIT]

Workers only sleep, on simulated nodes of this machine. Counted is the time of the processor, user's
and system's, of the leader and all below it but the workers. With `--against` that commit does the
same, in turns with this tree. Run it on a machine that does nothing else.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.benchmarks.trees import Tree, add_flag, compared, in_turns, trees
from tests.commands import LIMIT_S
from tests.launch.submit import SUBMIT, wait_until
from train.report.pages.page import markdown_table

SLEEP = ': >"$0/$RANK"; exec sleep 100000'
# What a worker's command is run by, and stays above it.
WORKER = "muster/worker/worker_main.py"
SETTLED_S = 5.0  # until what belongs to the start is over


class Idle(NamedTuple):
    """Of one run."""

    started_s: float
    leader_s: float
    agents_s: float
    processes: int


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=7, help="of each tree")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--nproc-per-node", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0, help="in which nothing happens")
    add_flag(parser)
    args = parser.parse_args(argv)
    with trees(args.against) as which:
        found = in_turns(which, args.times, lambda tree: measured(tree, args))
    rows = []
    for what, value in {
        "seconds until all workers have started": lambda one: one.started_s,
        f"processor of leader and agents in {args.seconds:g} s": lambda one: (
            one.leader_s + one.agents_s
        ),
        "of it the leader's": lambda one: one.leader_s,
        "processes but the workers": lambda one: float(one.processes),
    }.items():
        cells = compared({name: [value(one) for one in runs] for name, runs in found.items()})
        rows.append({"what": what, **cells})
    print(markdown_table(rows))
    return 0


def measured(tree: Tree, args: argparse.Namespace) -> Idle:
    """One run, which is ended then."""
    size = [f"--nodes={args.nodes}", f"--nproc-per-node={args.nproc_per_node}"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begun = folder / "begun"
        begun.mkdir()
        words = [sys.executable, SUBMIT, "--launcher=local", *size, "--workers=manual"]
        words += [f"--logs-dir={folder / 'logs'}", "--", "/bin/sh", "-c", SLEEP, str(begun)]
        with (folder / "printed").open("w+") as printed:
            asked_unix_s = time.time()
            leader = subprocess.Popen(
                tree.command(words), cwd=folder, stdin=subprocess.DEVNULL, stdout=printed,
                stderr=printed,
            )  # fmt: skip
            try:
                workers = args.nodes * args.nproc_per_node
                wait_until(
                    lambda: len(list(begun.iterdir())) == workers or leader.poll() is not None
                )
                times = [path.stat().st_mtime for path in begun.iterdir()]
                if len(times) < workers:
                    sys.exit((folder / "printed").read_text())
                time.sleep(SETTLED_S)
                before = processor_s(leader.pid)
                time.sleep(args.seconds)
                after = processor_s(leader.pid)
            finally:
                leader.terminate()
                leader.wait(LIMIT_S)
    spent = {pid: after[pid] - before.get(pid, 0.0) for pid in after}
    leader_s = spent.pop(leader.pid)
    return Idle(max(times) - asked_unix_s, leader_s, sum(spent.values()), len(after))


def processor_s(leader: int) -> dict[int, float]:
    """Of the leader and each process below it but workers, with children that have ended."""
    found = {}
    for process in _of_ours(psutil.Process(leader)):
        with suppress(psutil.NoSuchProcess):
            found[process.pid] = sum(process.cpu_times()[:4])
    return found


def _of_ours(process: psutil.Process) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        if not any(word.endswith(WORKER) for word in process.cmdline()):
            yield process
            for child in process.children():
                yield from _of_ours(child)


if __name__ == "__main__":
    sys.exit(main())
