"""Seconds from the command to the first step: `launch/submit.py` beside torchrun by itself.

    python -m tests.benchmarks.startup [--rounds 5]

Four workers on this machine, in turns: of our trainer, and of a BERT that is trained by hand, as a
user's script that imports transformers (peers/plain_ddp.py). Memory is the sum of the workers'
shares (PSS: what several processes share counts once) at its highest. And how soon `--help` and
`--dry-run` have said what they say.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from configs.plugins import REPOSITORY
from launch.agent.processes import process_tree
from tests.benchmarks import made
from tests.benchmarks.results import HEAD, Spread, aligned, held

WORKERS, LOOK_S = 4, 0.25
SUBMIT = [str(REPOSITORY / "launch" / "submit.py"), "--launcher=local"]
ONE_NODE = [*SUBMIT, "--nodes=1", f"--nproc-per-node={WORKERS}"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
TRAINER = ["--task=synthetic", "--max-steps=3", "--evaluate=never", "--no-save-model"]
BY_HAND = ["-m", "tests.benchmarks.peers.plain_ddp", "--batch-size=16", "--steps=1"]
# What torch imports with an optimizer's first step, and transformers with the model.
LATE = "torch._dynamo,transformers.models.auto.modeling_auto,transformers.models.bert.modeling_bert"
FIRST_STEP = (b"step 1 ", b'{"step": 1')  # as the trainer prints it, and as the peer does
ANSWERS = {"submit.py --help": ["--help"], "submit.py --dry-run": ["--nodes=4", "--dry-run"]}
MOST_ANSWER_S = 0.3


@dataclass(frozen=True)
class Start:
    """A command, before the flags of its program, and what it may take of torchrun's time."""

    name: str
    command: Sequence[str]
    most: float | None = None
    by_hand: bool = False

    @property
    def base(self) -> "Start":
        return next(one for one in STARTS if one.by_hand == self.by_hand)


STARTS = (
    Start("torchrun", [*TORCHRUN, "-m", "train.worker"]),
    Start("submit.py, one node of four", ONE_NODE, 1.1),
    Start("submit.py, four nodes of one", [*SUBMIT, f"--nodes={WORKERS}"]),
    Start("submit.py, --workers preload", [*ONE_NODE, "--workers=preload"], 0.55),
    Start("a BERT by hand, torchrun", TORCHRUN, by_hand=True),
    Start("a BERT by hand, --workers preload",
          [*ONE_NODE, "--workers=preload", f"--preload={LATE}"], 0.55, by_hand=True),
)  # fmt: skip
Figures = dict[str, list[float]]  # of each round, by what was measured
MEMORY = "{}: GiB of four workers"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="starts of each kind")
    print(aligned([HEAD, *table(measured(parser.parse_args().rounds))]))
    return 0


def measured(rounds: int) -> Figures:
    """All in turns; a round before the first one warms up."""
    found: Figures = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        env |= {"PYTHONPATH": str(REPOSITORY), "XDG_STATE_HOME": str(folder / "state")}
        given = made.ready("small", None, folder, seed=0)
        program = [*BY_HAND, f"--data-dir={given.data}", f"--model={given.model}"]
        for number in range(rounds + 1):
            figures = {}
            for at, start in enumerate(STARTS):
                logs = f"--logs-dir={folder}/{number}-{at}"
                words = [*start.command, *TRAINER, logs]
                if start.by_hand:
                    ours = [] if start is start.base else [logs, "--"]
                    words = [*start.command, *ours, *program]
                    more = [*words, "--steps=6"]
                    figures[MEMORY.format(start.name)] = most_memory(more, env)
                figures[start.name] = to_first_step(words, env)
            figures |= {what: to_answer(words) for what, words in ANSWERS.items()}
            for what, one in figures.items() if number else ():
                found.setdefault(what, []).append(one)
    return found


def table(found: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """Rows of the benchmark's targets; what is wanted of nothing is shown all the same."""
    rows = []
    for start in STARTS:
        for what, title, unit, most in (
            ("{}", "{}: to the first step, of torchrun's", "s", start.most),
            (MEMORY, MEMORY + ", of torchrun's", "GiB", None),
        ):
            if (own := found.get(what.format(start.name))) is None:
                continue
            base = found[what.format(start.base.name)]
            ratios = [one / other for one, other in zip(own, base, strict=True)]
            note = f" ({Spread.of(own).text(2)} {unit})"
            rows.append(held(title.format(start.name), ratios, most, note=note))
    return rows + [held(f"{one}: its answer", found[one], MOST_ANSWER_S, "s") for one in ANSWERS]


def to_answer(words: list[str]) -> float:
    """Until the command has said what it has to say."""
    begun = time.perf_counter()
    command = [sys.executable, *SUBMIT, *words]
    subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def started(words: list[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Its output is read as it comes."""
    return subprocess.Popen(
        [sys.executable, *words], cwd=REPOSITORY, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def to_first_step(words: list[str], env: Mapping[str, str]) -> float:
    """Seconds until the first step is printed; the run is waited for."""
    begun, first_s = time.perf_counter(), None
    process = started(words, env)
    assert process.stdout is not None
    for line in process.stdout:
        if first_s is None and line.startswith(FIRST_STEP):
            first_s = time.perf_counter() - begun
    process.wait()  # not its exit code: the peer ends by os._exit, and says nothing of that
    if first_s is None:
        sys.exit(f"{' '.join(words)}: exit code {process.returncode}")
    return first_s


def most_memory(words: list[str], env: Mapping[str, str]) -> float:
    """GiB that the workers of a run hold together at most; what they share counts once."""
    process = started(words, env)  # which prints little: it is not read
    most = 0
    while process.poll() is None:
        most = max(most, sum(shares_below(process.pid)))
        time.sleep(LOOK_S)
    if not most:
        sys.exit(f"{' '.join(words)}: exit code {process.returncode}")
    return most / 2**30


def shares_below(pid: int) -> Iterator[int]:
    """What processes with a rank hold: pages that n of them share count as 1/n (PSS)."""
    with suppress(psutil.Error):
        for one in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error, OSError):
                if process_tree.rank_of(one) is not None:
                    yield one.memory_full_info().pss


if __name__ == "__main__":
    sys.exit(main())
