"""Four workers of one import beside torchrun's: seconds to the first step, and memory.

    python -m tests.benchmarks.preloaded [--rounds 3]

The trainer on its synthetic task, and a BERT that is trained by hand, as a user's script that
imports transformers (peers/plain_ddp.py). Both kinds in turns, in each round. Memory is the sum of
the workers' shares (PSS: what several processes share counts once) at its highest.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from configs.plugins import REPOSITORY
from launch.agent.processes import process_tree
from tests.benchmarks import made, startup
from tests.benchmarks.results import Spread, aligned

WORKERS, MOST_OF_TORCHRUN = 4, 0.55
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
PRELOAD = ["--workers=preload", "--preload=torch,transformers"]
PEER = ["-m", "tests.benchmarks.peers.plain_ddp"]
KINDS = ("torchrun", "preload")
PROGRAMS = ("the trainer", "a BERT by hand")
LOOK_S = 0.25
MEMORY = "a BERT by hand: GiB of four workers"
Figures = dict[str, dict[str, list[float]]]  # of each round, by what was measured and the kind


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="starts of each kind")
    found = measured(parser.parse_args().rounds)
    head = ["", "wanted", "reached", ""]
    print(aligned([head, *([row[0], *row[2:]] for row in table(found))]))
    return 0


def measured(rounds: int) -> Figures:
    """All in turns; the round before the first one warms up, and records what is imported."""
    found: Figures = {what: {kind: [] for kind in KINDS} for what in (*PROGRAMS, MEMORY)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")}
        peer = [*PEER, *peer_flags(folder)]
        for number in range(rounds + 1):
            for kind in KINDS:
                logs = folder / f"{number}-{kind}"
                seconds = {
                    PROGRAMS[0]: startup.to_first_step(trainer(kind), logs, env),
                    PROGRAMS[1]: to_first_line(by_hand(kind, logs, [*peer, "--steps=1"]), env),
                    MEMORY: most_memory(by_hand(kind, logs, [*peer, "--steps=6"]), env),
                }
                for what, one in seconds.items() if number else ():
                    found[what][kind].append(one)
    return found


def table(found: Mapping[str, Mapping[str, list[float]]]) -> list[list[str]]:
    """Rows of the benchmark's targets; nothing is wanted of memory."""
    rows = []
    for what, figures in found.items():
        own, other = (figures[kind] for kind in ("preload", "torchrun"))
        ratio = Spread.of([one / base for one, base in zip(own, other, strict=True)])
        unit = "GiB" if what == MEMORY else "s"
        beside = f"{Spread.of(own).text(2)} {unit} beside {Spread.of(other).text(2)} {unit}"
        reached = f"{ratio.text(2)} ({beside})"
        wanted = verdict = ""
        if what != MEMORY:
            wanted = f"<= {MOST_OF_TORCHRUN:.2f} x"
            verdict = "met" if ratio.mean <= MOST_OF_TORCHRUN else "missed"
        title = what if what == MEMORY else f"{what}, --workers preload: to the first step"
        rows.append([f"{title}, of torchrun's", "", wanted, reached, verdict])
    return rows


def peer_flags(folder: Path) -> list[str]:
    """What the BERT by hand trains on: a small model and a data set that are made here."""
    given = made.ready("small", None, folder, seed=0)
    return [f"--data-dir={given.data}", f"--model={given.model}", "--batch-size=16"]


def trainer(kind: str) -> list[str]:
    """The command of our own trainer, but for its flags."""
    if kind == "torchrun":
        return [*TORCHRUN, "-m", "train.worker"]
    return [*startup.ONE_NODE, "--workers=preload"]


def by_hand(kind: str, logs: Path, program: list[str]) -> list[str]:
    """The command of a program that knows nothing of us."""
    if kind == "torchrun":
        return [*TORCHRUN, *program]
    return [*startup.ONE_NODE, *PRELOAD, f"--logs-dir={logs}-peer", "--", *program]


def started(command: list[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Its output is read as it comes."""
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env={**env, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def to_first_line(command: list[str], env: Mapping[str, str]) -> float:
    """Seconds until rank 0 has printed its first step; the run is waited for."""
    begun, first_s = time.perf_counter(), None
    process = started(command, env)
    assert process.stdout is not None
    for line in process.stdout:
        if first_s is None and line.startswith(b'{"step": 1'):
            first_s = time.perf_counter() - begun
    process.wait()  # not its exit code: the peer ends by os._exit, and says nothing of that
    if first_s is None:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
    return first_s


def most_memory(command: list[str], env: Mapping[str, str]) -> float:
    """GiB that the workers of a run hold together at most; what they share counts once."""
    process = started(command, env)  # which prints little: it is not read
    most = 0
    while process.poll() is None:
        most = max(most, sum(map(share_bytes, workers_below(process.pid))))
        time.sleep(LOOK_S)
    if not most:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
    return most / 2**30


def workers_below(pid: int) -> list[int]:
    """The processes that have a rank, and a session of their own."""
    found = []
    with suppress(psutil.Error):
        for one in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error, OSError):
                if process_tree.rank_of(one) is not None:
                    found.append(one.pid)
    return found


def share_bytes(pid: int) -> int:
    """The proportional set size of a process: pages that n processes share count as 1/n."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    sys.exit(main())
