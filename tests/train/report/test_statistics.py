import pytest
from scipy import stats

from train.report.data.tables import estimate


def test_the_interval_is_students_t():
    values = [0.11, 0.12, 0.1, 0.14, 0.13]
    found = estimate(values)
    wanted = stats.t.interval(0.95, 4, loc=0.12, scale=stats.sem(values))
    assert (found["low_s"], found["high_s"]) == pytest.approx(wanted)
    assert (found["mean_s"], found["median_s"]) == (pytest.approx(0.12), 0.12)


def test_one_value_has_no_interval_and_none_no_estimate():
    assert estimate([3.0])["low_s"] is None
    assert estimate([None, float("nan"), "x", True]) == {}
