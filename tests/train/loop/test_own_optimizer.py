"""A task may bring optimizer and learning rates; parameters that drift apart are made equal."""

import pytest

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from tests.train.loop import drift_worker
from tests.train.workers import records, run_on_ranks
from train.report.data import event_tables
from train.report.data.subject import read_subject


def of_kind(rows, kind):
    return [row for row in rows if row["kind"] == kind]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drift")
    run_on_ranks(drift_worker.__file__, 2, str(folder))
    return folder


def test_a_task_brings_its_own_optimizer_and_schedule(runs):
    steps = of_kind(records(runs / "plain", 0), "step")
    assert [row["lr"] for row in steps] == [0.01 * 0.5**number for number in range(6)]


def test_making_equal_what_is_equal_changes_no_loss(runs):
    plain, alike = (of_kind(records(runs / name, 0), "step") for name in ("plain", "alike"))
    assert [row["loss"] for row in plain] == [row["loss"] for row in alike]
    assert {row["drift"] for row in of_kind(records(runs / "alike", 1), "drift")} == {0.0}
    assert not of_kind(records(runs / "plain", 0), "drift")


def test_drift_is_measured_and_reported(runs):
    for rank in (0, 1):
        found = of_kind(records(runs / "drifts", rank), "drift")
        assert [row["step"] for row in found] == [2, 4, 6]
        # of two steps; parameters round, too
        drifts = [row["drift"] for row in found]
        assert drifts == pytest.approx([2 * drift_worker.ROUNDING] * 3, rel=1e-5)
    (row,) = event_tables.drift(read_subject([runs / "drifts"])).to_dict("records")
    assert (row["measured"], row["last_drift"]) == (3, drifts[-1])


@pytest.mark.parametrize("mode", ["zero1", "fsdp", "local_sgd"])
def test_modes_without_copies_refuse_it(mode):
    with pytest.raises(UsageError, match=f"--equalize-every does not go with --sync {mode}"):
        TrainConfig(sync=mode, equalize_every=5)
