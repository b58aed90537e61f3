"""What torch's DDP tells of a step is that step's, and it warns nobody of what is meant so."""

import json

import pytest

from tests.train.sync.modes import ddp_worker as worker
from tests.train.workers import REPOSITORY, finish, start


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    store = tmp_path_factory.mktemp("ddp") / "store"
    ((code, out, err),) = finish(
        [start([worker.__file__, str(store)], env={"PYTHONPATH": str(REPOSITORY)})]
    )
    assert code == 0, err
    return out, err


def test_its_seconds_of_communication_are_those_of_the_step_itself(ended):
    """And what a mode of ours waited for in its backward pass, which counts as its `sync_s`."""
    for seconds in json.loads(ended[0]):
        assert [one >= 0.9 * worker.SLOW_S for one in seconds] == [
            step == worker.SLOW for step in range(worker.STEPS)
        ]


def test_a_run_does_not_show_torchs_warning_of_unused_parameters(ended):
    assert "find_unused_parameters" not in ended[1]
