"""Time in which a process is stopped does not count, and any other does."""

import pytest

from launch.deadlines import ITSELF_STOPPED_AFTER_S, STOP_COUNTS_AS_S
from launch.nodes.running_time import RunningClock


@pytest.mark.parametrize("stopped_s", [40.0, 100_000.0])
def test_a_stop_counts_as_little_as_one_look(stopped_s):
    now = [1000.0]
    clock = RunningClock(lambda: now[0])
    for _ in range(20):
        now[0] += 1.0
        clock()
    assert clock() == pytest.approx(20.0)
    now[0] += stopped_s
    assert clock() == pytest.approx(20.0 + STOP_COUNTS_AS_S)
    now[0] += ITSELF_STOPPED_AFTER_S
    assert clock() == pytest.approx(
        20.0 + STOP_COUNTS_AS_S + ITSELF_STOPPED_AFTER_S
    )  # a busy machine
