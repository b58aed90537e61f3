"""A bucket's gradients go to the ranks whose parts they are, and the parts to all ranks."""

import pytest

from tests.train.sync.sharding import bucket_worker
from tests.train.workers import run_on_ranks


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_get_the_means_of_their_parts_and_tell_all_what_becomes_of_them(count):
    run_on_ranks(bucket_worker.__file__, count)
