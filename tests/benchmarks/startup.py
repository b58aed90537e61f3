"""Measure the seconds from a command to the first step: `launch/submit.py` and plain torchrun.

    python -m tests.benchmarks.startup [--rounds 5] [--ranks 4,16,32,64] [--against COMMIT]

Four workers start on this machine, in turns: with our trainer, and with a hand-written BERT script,
which imports transformers as a user's script may (peers/plain_ddp.py). It also measures how long
`--help` and `--dry-run` take. With `--ranks`, that many workers do nothing but meet
(peers/meet.py), on simulated nodes of four workers each. With `--against`, that commit and this
tree start in turns on four nodes of one worker each: our trainer, and a script that only uses
torch.
"""

import argparse
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from muster.checkout import CHECKOUT
from tests.benchmarks import made
from tests.benchmarks.results import held, spread
from tests.benchmarks.trees import Tree, add_flag, compared, in_turns, trees
from tests.launch.submit import SUBMIT
from train.report.pages.page import markdown_table

WORKERS = 4
LOGS = "--logs-dir={logs}"  # of each run
LOCAL = [SUBMIT, "--launcher=local", LOGS]
ONE_NODE = [*LOCAL, "--nodes=1", f"--nproc-per-node={WORKERS}"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
TRAINER = ["--task=synthetic", "--max-steps=3", "--evaluate=never", "--no-save-model"]
# Modules that torch imports at an optimizer's first step, and transformers with the model.
LATE = "torch._dynamo,transformers.models.auto.modeling_auto,transformers.models.bert.modeling_bert"
MEET = "tests.benchmarks.peers.meet"
SCRIPT = str(Path(__file__).with_name("peers") / "meet.py")
# Many workers that import torch on few cores take minutes.
PATIENT = ["--join-timeout-s=1800", "--hang-after-s=0"]
FIRST_STEP = (b"step 1 ", b'{"step": 1')  # as the trainer prints it, and as the peer does


class Start(NamedTuple):
    """A command, and the multiple of its base's time that it may take."""

    command: Sequence[str]
    most: float | None = None
    base: str = "torchrun"


BY_HAND = "a BERT by hand, torchrun"
STARTS = {
    "torchrun": Start([*TORCHRUN, "-m", "train.worker", *TRAINER, LOGS]),
    "submit.py, one node of four": Start([*ONE_NODE, *TRAINER], 1.1),
    "submit.py, four nodes of one": Start([*LOCAL, f"--nodes={WORKERS}", *TRAINER]),
    "submit.py, --workers preload": Start([*ONE_NODE, "--workers=preload", *TRAINER], 0.55),
    BY_HAND: Start(TORCHRUN, base=BY_HAND),
    "a BERT by hand, --workers preload":
        Start([*ONE_NODE, "--workers=preload", f"--preload={LATE}", "--"], 0.55, BY_HAND),
}  # fmt: skip
ANSWERS = {"submit.py --help": ["--help"], "submit.py --dry-run": ["--nodes=4", "--dry-run"]}
MOST_ANSWER_S = 0.3


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="starts of each kind")
    parser.add_argument("--ranks", help="seconds over the number of workers instead: 4,16,32,64")
    add_flag(parser)
    args = parser.parse_args()
    if args.against:
        rows = beside(args.against, args.rounds)
    elif args.ranks:
        rows = over_ranks([int(one) for one in args.ranks.split(",")], args.rounds)
    else:
        rows = table(measured(args.rounds))
    print(markdown_table(rows))
    return 0


def beside(commit: str, rounds: int) -> list[dict[str, str]]:
    """Return a row per program and starter: both trees' seconds to the first step, in turns."""
    rows = []
    programs = {"our trainer": TRAINER, "a script of torch alone": ["--", SCRIPT]}
    with trees(commit) as which, tempfile.TemporaryDirectory() as folder:
        numbers = itertools.count()

        def measured_s(tree: Tree, words: Sequence[str]) -> float:
            logs = LOGS.format(logs=f"{folder}/{next(numbers)}")
            command = tree.command([sys.executable, *LOCAL[:2], logs, *words])
            return first_step_s(command, cwd=folder, env=workers_environment())

        for (program, own), workers in product(programs.items(), ("torchrun", "preload")):
            words = [f"--nodes={WORKERS}", f"--workers={workers}", *own]
            found = in_turns(which, rounds, partial(measured_s, words=words))
            rows.append({"what": f"{program}, {workers}", **compared(found)})
    return rows


def over_ranks(sizes: Sequence[int], rounds: int) -> list[dict[str, str]]:
    """Return a row for each number of workers: seconds until all have met, both starts in turns."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in sizes:
            nodes = max(1, ranks // WORKERS)
            each = ranks // nodes
            seconds: dict[str, list[float]] = {"torchrun": [], "muster run": []}
            for number in range(rounds):
                seconds["torchrun"].append(torchrun_s(nodes, each, folder))
                size = [f"--nodes={nodes}", f"--nproc-per-node={each}"]
                logs = LOGS.format(logs=f"{folder}/{ranks}-{number}")
                words = [*LOCAL[:2], logs, *PATIENT, *size, "--", "-m", MEET]
                seconds["muster run"].append(to_first_step(words, folder))
            row = {"nodes": str(nodes), "workers": str(nodes * each)}
            rows.append(row | {of: f"{spread(times, 1)} s" for of, times in seconds.items()})
    return rows


def torchrun_s(nodes: int, each: int, folder: str) -> float:
    """Return the seconds of plain torchrun: one command for each node, all at the same time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = ["-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={each}"]
    common += ["--master-addr=127.0.0.1", f"--master-port={port}"]
    commands = [[*common, f"--node-rank={rank}", "-m", MEET] for rank in range(nodes)]
    begun = time.perf_counter()
    others = [
        subprocess.Popen(
            [sys.executable, *words], cwd=CHECKOUT, env=environment(folder),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) for words in commands[1:]
    ]  # fmt: skip
    try:
        before_s = time.perf_counter() - begun
        return before_s + to_first_step(commands[0], folder)
    finally:
        for process in others:
            process.wait()


def measured(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round, all starts in turns; an extra round before warms up."""
    found = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        given = made.ready("small", None, Path(folder), seed=0)
        program = ["-m", "tests.benchmarks.peers.plain_ddp", "--batch-size=16", "--steps=1"]
        program += [f"--data-dir={given.data}", f"--model={given.model}"]
        for number in range(rounds + 1):
            seconds = {}
            for name, one in STARTS.items():
                words = [*one.command, *(program if one.base == BY_HAND else [])]
                logs = f"{folder}/{number}/{name}"
                seconds[name] = to_first_step([word.format(logs=logs) for word in words], folder)
            seconds |= {name: to_answer(words) for name, words in ANSWERS.items()}
            for name, one_s in seconds.items() if number else ():
                found[name].append(one_s)
    return found


def table(found: Mapping[str, Sequence[float]]) -> list[dict[str, str]]:
    """Return rows of the benchmark's targets; starts without a target are shown as well."""
    rows = []
    for name, (_, most, base) in STARTS.items():
        ratios = [one / other for one, other in zip(found[name], found[base], strict=True)]
        note = f" ({spread(found[name], 2)} s)"
        rows.append(held(f"{name}: to the first step, of torchrun's", ratios, most, note=note))
    return rows + [held(f"{one}: its answer", found[one], MOST_ANSWER_S, "s") for one in ANSWERS]


def to_answer(words: list[str]) -> float:
    """Return the seconds until the command has printed everything and ended."""
    begun = time.perf_counter()
    command = [sys.executable, *LOCAL, *words]
    subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def to_first_step(words: list[str], folder: str) -> float:
    """Return the seconds to the first step of a Python that starts in this checkout."""
    return first_step_s([sys.executable, *words], cwd=CHECKOUT, env=environment(folder))


def first_step_s(command: list[str], cwd: str | Path, env: Mapping[str, str]) -> float:
    """Return the seconds until the first step is printed, after waiting for the run to end."""
    begun, first_s = time.perf_counter(), None
    with subprocess.Popen(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        for line in process.stdout or ():
            if first_s is None and line.startswith(FIRST_STEP):
                first_s = time.perf_counter() - begun
    # the exit code is not checked: the peer ends with os._exit, so it says nothing
    if first_s is None:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
    return first_s


def environment(folder: str) -> dict[str, str]:
    """Return the environment of a start in this checkout, with a state folder of its own."""
    env = {"PYTHONPATH": str(CHECKOUT), "XDG_STATE_HOME": f"{folder}/state"}
    return {**workers_environment(), **env}


def workers_environment() -> dict[str, str]:
    """Return an environment with one thread for each worker and unbuffered output."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


if __name__ == "__main__":
    sys.exit(main())
