"""Time in which a process is stopped does not count, and any other does."""

import pytest

from launch.nodes.running_time import COUNTED_S, STOPPED_S, RunningClock


@pytest.mark.parametrize("stopped_s", [40.0, 100_000.0])
def test_a_stop_counts_as_little_as_one_look(stopped_s):
    now = [1000.0]
    clock = RunningClock(lambda: now[0])
    for _ in range(20):
        now[0] += 1.0
        clock()
    assert clock() == pytest.approx(20.0)
    now[0] += stopped_s
    assert clock() == pytest.approx(20.0 + COUNTED_S)
    now[0] += STOPPED_S
    assert clock() == pytest.approx(20.0 + COUNTED_S + STOPPED_S)  # a busy machine
