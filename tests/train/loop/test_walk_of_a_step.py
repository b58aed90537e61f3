"""A step goes through few files: each is one that whoever reads the loop has to open."""

import sys
from pathlib import Path

import pytest

from configs.settings.train import TrainConfig
from tests.launch.walked.sitecustomize import tracer
from tests.train.retained import run
from tests.train.workers import results_of
from train.sync.ranks import Ranks

pytestmark = pytest.mark.slow

MOST = 15  # the task's own included; five are those of the library that users call
TRACED = 6  # the steps before it: after the losses that are printed one by one


def files_of_a_step(ranks: Ranks, folder: str) -> list[str]:
    """From where one step begins to where the next one does."""
    config = TrainConfig(
        task="synthetic", sync="all_reduce", batch_size=256, device="cpu", evaluate="never"
    )
    entered = set[str]()

    def at_step(step: int) -> None:
        if step >= TRACED:
            sys.setprofile(tracer(entered.add) if step == TRACED else None)

    run(config, Path(folder), at_step, ranks=ranks)
    return sorted(entered)


def test_a_step_of_all_reduce_enters_few_files(tmp_path):
    found = results_of(files_of_a_step, 2, tmp_path, str(tmp_path / "run"))
    for files in found:
        assert len(files) <= MOST, f"{len(files)} files:\n{chr(10).join(files)}"
        assert {"train/loop/step.py", "train/sync/modes/all_reduce.py"} <= {*files}
