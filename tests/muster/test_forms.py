"""A value has a form, or it has not; nothing is converted."""

import math

import pytest

from muster.forms import MORE, anything, dict_of, fits


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (int, [0, -1], [True, 1.0, "1", None]),
        (float, [0.5], [1, math.nan, math.inf]),
        ((int, None), [1, None], ["x"]),
        ([str], [[], ["a"]], ["a", [1], {"a": 1}]),
        (
            {"a": int, "b?": str},
            [{"a": 1}, {"a": 1, "b": "x"}],
            [{"b": "x"}, {"a": 1, "b": 2}, {"a": 1, "c": 2}],
        ),
        ({"a": int, MORE: anything}, [{"a": 1, "c": []}], [{}, {"c": 1}]),
        (dict_of(str, int), [{}, {"a": 1}], [{"a": "x"}, []]),
        ({}, [{}], [{"a": 1}]),
        (dict_of(str.isdigit, int), [{"1": 1}], [{"x": 1}]),
        (lambda value: value == 3, [3], [4]),
    ],
)
def test_a_value_has_a_form_or_not(form, good, bad):
    assert all(fits(value, form) for value in good)
    assert not any(fits(value, form) for value in bad)
