"""A grid is the product of its values, and each point has its own name for a folder."""

import math
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.settings.train import TrainConfig
from launch.studies import grid
from muster.checkout import CHECKOUT
from muster.errors import UsageError
from tests.commands import call

NAMES = st.from_regex(r"[a-z][a-z0-9]{0,3}", fullmatch=True)
VALUE = st.text(st.characters(exclude_characters=",;", exclude_categories=["Cs"]), min_size=1)
VALUES = st.lists(VALUE, min_size=1, max_size=4, unique=True)
BLOCKS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=3)


@given(BLOCKS)
def test_grid_has_a_point_for_each_combination(block):
    found = grid.read([f"{name}={','.join(values)}" for name, values in block.items()])
    assert found == block
    points = list(grid.points(found))
    assert len(points) == math.prod(map(len, block.values()))
    assert len({tuple(point.items()) for point in points}) == len(points)
    assert all(point[name] in block[name] for point in points for name in block)


@given(BLOCKS)
def test_names_are_those_of_runs_and_no_two_are_alike(block):
    points = list(grid.points(block))
    names = grid.names_of(points, "train")
    assert len(set(names)) == len(points)
    for name in names:
        TrainConfig(run_id=name)  # refuses what could not be a folder
        assert len(name) <= grid.LONGEST
    assert names == grid.names_of(points, "train")  # the same command has the same names


def test_run_name_lists_values_and_is_shortened_by_digest():
    assert grid.names_of([{"lr": "1e-4", "seed": "1"}], "train") == ["train-lr-1e-4_seed-1"]
    (name,) = grid.names_of([{"text": "x" * 300}], "train")
    assert len(name) == grid.LONGEST and name.startswith("train-text-xxx")
    assert grid.names_of([{"a": "1/2"}, {"a": "1,2"}, {"a": "3"}], "t")[2] == "t-a-3"


def test_last_grid_value_varies_fastest_and_may_contain_commas():
    block = grid.read(["seed=1,2", "betas=0.9,0.999;0.8,0.99"])
    found = [" ".join(point.values()) for point in grid.points(block)]
    assert found == ["1 0.9,0.999", "1 0.8,0.99", "2 0.9,0.999", "2 0.8,0.99"]


REFUSED = [
    (["lr"], "--over lr: expected NAME=VALUE,VALUE"),
    (["--lr=1"], "--over --lr=1: expected NAME=VALUE,VALUE"),
    (["lr="], "--over lr=: the list is empty"),
    (["lr=1,,2"], "--over lr=1,,2: a value is empty"),
    (["lr=1,2,1"], "--over lr=1,2,1: 1 is given twice"),
    (["weight-decay=1", "weight_decay=2"], "weight_decay is given twice; separate its"),
    (["lr", "seed="], "--over seed=: the list is empty"),
]


@pytest.mark.parametrize(("texts", "message"), REFUSED)
def test_wrong_grid_is_refused_by_name(texts, message):
    with pytest.raises(UsageError) as error:
        grid.read(texts)
    assert message in str(error.value)


def test_a_script_gets_the_values_of_one_point():
    words, values = [sys.executable, "-m", "launch.studies.grid"], ["workers=1,2", "batch=64,128"]
    assert call(*words, "1", *values, cwd=CHECKOUT).stdout == "4 1 128\n"
    done = call(*words, "4", *values, cwd=CHECKOUT)
    assert "array index 4, but the grid has 4 points: --array=0-3" in done.stderr
    assert done.returncode == 2


WORDS = st.lists(
    st.text("a{}$=", max_size=4) | st.sampled_from(["{lr}", "x={lr}", "${lr}", "{rank}"])
)


@given(WORDS, VALUE)
def test_grid_value_fills_each_placeholder_or_is_added_last(words, value):
    point = {"lr": value, "rank": "4"}  # workers replace the latter
    written = grid.with_values(words, point)
    places = grid.placeholder_names(words, point)
    assert places == ({"lr"} if re.search(r"(?<![${]){lr}(?!})", " ".join(words)) else set())
    assert written[: len(words)] == [
        re.sub(r"(?<![${]){lr}(?!})", lambda _: value, word) for word in words
    ]
    assert written[len(words) :] == [*(() if places else ("--lr", value)), "--rank", "4"]
