"""`muster.sync_ddp`: a framework's DDP has the same gradients, by fewer bytes."""

from tests.train.sync import framework_worker
from tests.train.workers import run_on_ranks


def test_gradients_are_those_of_ddp_as_it_comes():
    run_on_ranks(framework_worker.__file__, 2)
