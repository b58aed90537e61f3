"""A rank that is slow is named with the step since which it is, and the phase."""

import json

import pytest

from configs.settings.train import TrainConfig
from launch.runs.watching.slow_steps import slow_rank
from muster.run_files import METRICS


@pytest.fixture
def write(tmp_path):
    def write(steps, **slow):
        """Four ranks; of rank 3, `slow` has other seconds, from step 21."""
        for rank in range(4):
            path = METRICS.path(tmp_path, rank=rank)
            path.parent.mkdir(exist_ok=True)
            with path.open("w") as file:
                for step in range(1, steps + 1):
                    record = {"kind": "step", "step": step, "rank": rank, "step_s": 0.3}
                    record |= {"data_s": 0.01, "forward_s": 0.03, "backward_s": 0.05}
                    record |= {"optimizer_s": 0.01, "comm_s": 0.0, "overlapped_s": 0.0}
                    if rank == 3 and step > 20:
                        record |= slow
                    file.write(json.dumps(record) + "\n")
                file.write('{"kind": "st')  # being written
        return tmp_path

    return write


def settings(sync="all_reduce"):
    return TrainConfig(sync=sync)


def test_since_when_and_in_what(write):
    expected = "rank 3 is 1.4 times the median since step 21, in data"
    assert slow_rank(write(40, data_s=0.05), settings()) == expected


def test_one_that_waits_is_not_slow(write):
    assert slow_rank(write(40), settings()) is None
    # ddp's backward pass holds what it waits for: others are slow then
    waits = {"backward_s": 0.15, "comm_s": 0.1, "overlapped_s": 0.0}
    assert slow_rank(write(40, **waits), settings("ddp")) is None
    assert "in backward" in slow_rank(write(40, **waits), settings())


def test_too_few_steps_or_ranks_say_nothing(write, tmp_path):
    assert slow_rank(write(4, data_s=0.05), settings()) is None
    assert slow_rank(tmp_path / "none", settings()) is None
