"""A clock's skew does not depend on how long the question took."""

import pytest

from launch.checks.clock import Ping, skew_s


@pytest.mark.parametrize("round_trip_s", [0.0, 0.01, 5.0])
def test_half_of_the_way_is_taken_off(round_trip_s):
    ahead_s = 2.5
    node = 1000.0 + round_trip_s / 2 + ahead_s
    assert Ping(1000.0, 1000.0 + round_trip_s, node).skew_s == pytest.approx(ahead_s)


def test_the_quickest_ping_knows_best():
    slow, quick = Ping(0.0, 10.0, 9.9), Ping(20.0, 20.002, 20.501)
    assert skew_s([slow, quick]) == pytest.approx(0.5)
    assert skew_s([]) is None
