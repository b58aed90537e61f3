"""A user's loop that is killed at any moment resumes as if it had not been killed.

Two moments are tried here; `make soak` tries all twenty.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.train.program.killed_program import BATCH, EPOCHS, SAMPLES
from tests.train.workers import run_program

pytestmark = pytest.mark.slow

RANKS = 2
STEPS = SAMPLES // BATCH * EPOCHS
PROGRAM = Path(__file__).with_name("killed_program.py").read_text()
# The training, the moment of the kill, and the number of ranks that resume. A moment is a rank (or
# all ranks), an event, and the event's step or how often it has happened.
MOMENTS = [
    ("powersgd", "1 recorded 7", 2),  # between `record` and `after_step`
    ("auto", "0 open 9", 3),  # while a checkpoint is written
    ("powersgd", "0 rename 3", 2),
    ("powersgd", "0 open 1", 2),
    ("bf16", "0 open 6", 3),
    ("powersgd", "all saving 12", 2),
    ("powersgd", "0 rename 2", 1),
    ("powersgd", "0 recorded 10", 2),
    ("powersgd", "1 computed 17", 2),
    ("powersgd", "0 open 12", 1),
    ("powersgd", "all recorded 16", 3),
    ("ddp", "1 saving 8", 2),
    ("ddp", "0 open 15", 2),
    ("ddp", "all computed 1", 2),
    ("exact", "0 rename 1", 2),
    ("exact", "1 recorded 18", 3),
    ("exact", "0 open 20", 1),
    ("auto", "1 recorded 13", 2),
    ("auto", "all saving 8", 1),
    ("auto", "0 computed 24", 2),
]
TRIED = MOMENTS[: int(os.environ.get("SOAK_MOMENTS", "2"))]


@dataclass
class Trained:
    """The results of all ranks, by step."""

    begun: int
    losses: dict[int, float]
    samples: dict[int, list[int]]
    weights: Sequence[str]  # the same on all ranks; empty if the run was killed

    @classmethod
    def read(cls, folder: Path, ranks: int) -> "Trained":
        begun: set[int] = set()
        by_step: dict[int, set[str]] = {}
        samples: dict[int, list[int]] = {}
        weights: set[tuple[str, ...]] = set()
        for rank in range(ranks):
            for row in map(json.loads, (folder / f"rank_{rank}").read_text().splitlines()):
                if "begun" in row:
                    begun.add(row["begun"])
                elif "weights" in row:
                    weights.add(tuple(row["weights"]))
                else:
                    by_step.setdefault(row["step"], set()).add(row["loss"])
                    samples.setdefault(row["step"], []).extend(row["samples"])
        assert len(begun) == 1, f"ranks began after steps {begun}"
        assert len(weights) <= 1, "ranks end with different weights"
        assert all(len(losses) == 1 for losses in by_step.values()), by_step
        losses = {step: float.fromhex(next(iter(texts))) for step, texts in by_step.items()}
        return cls(begun.pop(), losses, samples, next(iter(weights), ()))


def trained(folder: Path, training: str, ranks: int, **env: str) -> tuple[Trained, list[int]]:
    """Run a training; return what the ranks wrote, and their exit codes."""
    folder.mkdir(exist_ok=True)
    env |= {"SAVED": str(folder), "TRAINING": training, "MUSTER_RUN_DIR": str(folder / "run")}
    ended = run_program(folder, PROGRAM, ranks, OMP_NUM_THREADS="1", **env)
    codes = [code for code, *_ in ended]
    if "KILL" not in env:
        assert codes == [0] * ranks, [err[-2000:] for *_, err in ended]
    return Trained.read(folder, ranks), codes


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a function for uninterrupted trainings, without dropout if the ranks are to change."""
    made: dict[tuple[str, ...], Trained] = {}

    def of(training: str, **env: str) -> Trained:
        key = (training, *env)
        if key not in made:
            made[key], _ = trained(tmp_path_factory.mktemp(training), training, RANKS, **env)
        return made[key]

    return of


@pytest.mark.parametrize(("training", "moment", "ranks"), TRIED)
def test_killed_program_goes_on_as_if_it_had_not_been(tmp_path, whole, training, moment, ranks):
    env = {} if ranks == RANKS else {"NO_DROPOUT": "1"}
    expected = whole(training, **env)
    _, event, number = moment.split()
    killed, codes = trained(tmp_path / "run", training, RANKS, KILL=moment, **env)
    assert -9 in codes and 0 not in codes, codes
    again, _ = trained(tmp_path / "run", training, ranks, **env)
    first = again.begun + 1
    assert again.begun <= max(killed.losses, default=0)
    if event not in ("open", "rename") and int(number) > 8:
        assert again.begun >= 2
    assert sorted(again.losses) == list(range(first, STEPS + 1))
    for step in range(first, STEPS + 1):
        assert sorted(again.samples[step]) == sorted(expected.samples[step])
    left = {step: expected.losses[step] for step in again.losses}
    if ranks == RANKS and training != "auto":
        assert again.losses == left
        assert again.weights == expected.weights
    elif training in ("auto", "exact"):
        assert again.losses == pytest.approx(left, rel=1e-12)
    else:  # what was left out starts at zero, so only the first loss is the same
        assert again.losses[first] == pytest.approx(left[first], rel=1e-12)
        assert again.losses == pytest.approx(left, rel=0.5)
