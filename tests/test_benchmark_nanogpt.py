"""nanoGPT's loop has the same losses with DDP and with `muster.sync`, so that its times compare."""

import sys
from unittest import mock

import pytest

from tests.benchmarks import nanogpt, places
from tests.preload import interpreter, skip_if_quick

STEPS = 3


def test_all_ways_train_the_same_and_stand_in_the_table():
    skip_if_quick()
    with mock.patch.object(sys, "executable", interpreter()):
        runs = nanogpt.measured(1, rate=places.LOOPBACK, nodes=2, steps=STEPS)
    losses = [run.losses for own in runs.values() for run in own]
    assert losses == [pytest.approx(losses[0], abs=1e-5)] * 3 and len(losses[0]) == STEPS
    head, *rows = nanogpt.table(runs)
    assert [row[0] for row in rows] == ["ddp", "ddp_4mib", "muster"]
    assert len({len(row) for row in (head, *rows)}) == 1


def test_other_losses_do_not_count():
    runs = {
        name: [places.Steps([loss] * STEPS, [1.0] * STEPS)]
        for name, loss in (("ddp", 2.0), ("ddp_4mib", 2.0), ("muster", 2.1))
    }
    assert [row[-1] for row in nanogpt.table(runs)[1:3]] == ["missed: other loss"] * 2
