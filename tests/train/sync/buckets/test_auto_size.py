"""The fastest bucket size on this link is found in the first steps."""

import pytest

from train.sync.buckets import auto_size
from train.sync.buckets.auto_size import STEPS_EACH, TRIED_MB, Chooser
from train.sync.ranks import Ranks

TWO = Ranks(rank=0, world_size=2)


@pytest.mark.parametrize(("message", "is_used"), [(None, 4.0), (0.0, 0.0), (7.5, 7.5)])
def test_a_number_stays(message, is_used):
    chooser = Chooser(TWO, message, 4.0)
    assert not any(chooser.stepped() for _ in range(100))
    assert chooser.bucket_mb == is_used and not chooser.messages


def test_alone_there_is_nothing_to_try():
    assert Chooser(Ranks(), "auto", 4.0).bucket_mb == 4.0


def test_the_size_is_chosen_that_is_fastest_on_the_slowest_rank(monkeypatch):
    """Here 1 MiB is fastest, but another rank takes longer with it."""
    cost = dict(zip(TRIED_MB, (1.0, 2.0, 3.0, 4.0), strict=True))
    now = 0.0

    def others(world, tensor, op):
        tensor[0] = 2.5
        return tensor

    monkeypatch.setattr(Ranks, "all_reduce", others)
    monkeypatch.setattr(auto_size.time, "perf_counter", lambda: now)
    chooser = Chooser(TWO, "auto", 25.0)
    seen = []
    for _ in range(STEPS_EACH * len(TRIED_MB) + 1):
        seen.append(chooser.bucket_mb)
        now += cost[chooser.bucket_mb]
        chooser.stepped()
    assert list(dict.fromkeys(seen)) == list(TRIED_MB)
    assert chooser.bucket_mb == TRIED_MB[1]
    fastest = "bucket-mb auto: 4 MiB is fastest here (a step with 1 MiB 2.5"
    assert chooser.messages.startswith(fastest)
    assert not any(chooser.stepped() for _ in range(100))
