"""Records written by others are used if they have the right form; nothing is converted."""

import json
import math

import pytest

from muster.records import dict_of, fits, json_objects, last_objects


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (int, [0, -1], [True, 1.0, "1", None]),
        (float, [0.5], [1, math.nan, math.inf]),
        ((int, None), [1, None], ["x"]),
        ([str], [[], ["a"]], ["a", [1], {"a": 1}]),
        (
            {"a": int, "b?": str},
            [{"a": 1}, {"a": 1, "b": "x"}, {"a": 1, "c": []}],
            [{}, {"b": "x"}, {"a": 1, "b": 2}, {"c": 1}],
        ),
        (dict_of(str, int), [{}, {"a": 1}], [{"a": "x"}, []]),
        (dict_of(str.isdigit, int), [{"1": 1}], [{"x": 1}]),
        (lambda value: value == 3, [3], [4]),
    ],
)
def test_a_value_has_a_form_or_not(form, good, bad):
    assert all(fits(value, form) for value in good)
    assert not any(fits(value, form) for value in bad)


def lines(count: int) -> bytes:
    return b"".join(json.dumps({"step": step}).encode() + b"\n" for step in range(count))


def test_json_line_that_is_cut_or_broken_is_skipped():
    data = lines(3) + b'[1]\n{"step": \xff}\n' + b'{"step": 3}\n{"st'
    assert [one["step"] for one in json_objects(data)] == [0, 1, 2, 3]
    assert [one["step"] for one in json_objects(data[2:24])] == [1]


def test_end_of_a_long_file_is_read(tmp_path):
    path = tmp_path / "rank_00000.jsonl"
    path.write_bytes(lines(20_000))
    found = last_objects(path)
    assert found[-1] == {"step": 19_999} and 1000 < len(found) < 20_000
    assert last_objects(tmp_path / "gone") == []
