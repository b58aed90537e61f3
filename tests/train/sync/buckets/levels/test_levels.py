"""Nodes with several workers: two levels equal one, and a node that trains alone is one worker."""

from pathlib import Path

import pytest
import torch

from tests.train.sync.buckets.levels.levels_worker import FLAT, LAYOUTS
from tests.train.test_equality import TOLERANCE
from tests.train.workers import run_on_ranks

WORKER = str(Path(__file__).with_name("levels_worker.py"))
ALL_LAYOUTS = [*LAYOUTS[4], *FLAT]
GAPS = {"torch.float64": 1e-15, "torch.float32": 1e-6, "torch.bfloat16": 3e-2}
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What four workers found, and of `local` what two did."""
    folder = tmp_path_factory.mktemp("found")
    for ranks in (4, 2):
        run_on_ranks(WORKER, ranks, str(folder), timeout_s=1700)
    four, two = (torch.load(folder / f"found_{ranks}.pt", weights_only=True) for ranks in (4, 2))
    return {**four, "local of two": two["local"]}


@pytest.mark.parametrize("layout", ALL_LAYOUTS)
def test_the_mean_is_exact_and_the_same_on_all_ranks(found, layout):
    for dtype, gap in found["means"][layout].items():
        assert gap <= GAPS[dtype], dtype


def test_training_in_two_levels_equals_a_single_process(found):
    wrong = []
    for name, one in found["equality"].items():
        gap = (one["got"] - one["want"]).abs().max().item()
        if not gap <= max(TOLERANCE[tuple(one["case"])]):
            wrong.append(f"{name}: {gap:.1e}")
    assert not wrong, "\n".join(wrong)
    assert {name.split("|")[0] for name in found["equality"]} == set(LAYOUTS[4])


@pytest.mark.parametrize("layout", LAYOUTS[4])
def test_auto_takes_what_it_measured_as_faster_and_says_so(found, layout):
    auto = found["auto"][layout]
    chosen = int(auto["state"]["levels"])
    assert int(auto["before"]["levels"]) == 0
    (message,) = auto["messages"]
    assert message.startswith(f"levels auto: {chosen} is fastest here (")
    seconds = [float(word.split()[1]) for word in message.partition("with ")[2].split(", ")]
    assert seconds[chosen - 1] == min(seconds)


@pytest.mark.parametrize("layout", LAYOUTS[4])
def test_a_resumed_run_goes_on_with_as_many_levels(found, layout):
    auto = found["auto"][layout]
    assert int(auto["resumed"]["levels"]) == 2 and auto["resumed messages"] == []


@pytest.mark.parametrize("layout", FLAT)
def test_where_there_is_one_level_nothing_is_tried(found, layout):
    auto = found["auto"][layout]
    assert auto["state"] == auto["before"] == {} and auto["messages"] == []


def test_a_node_that_trains_alone_is_as_one_worker_with_its_samples(found):
    assert found["local"].keys() == found["local of two"].keys()
    for name, got in found["local"].items():
        torch.testing.assert_close(got, found["local of two"][name], rtol=1e-12, atol=1e-12)


def test_the_average_between_nodes_is_that_over_ranks(found):
    one = found["every step"]
    torch.testing.assert_close(one["got"], one["want"], rtol=1e-12, atol=1e-12)


def test_one_node_alone_is_exact_in_every_step(found):
    one = found["every step"]
    torch.testing.assert_close(one["one node"], one["want"], rtol=1e-12, atol=1e-12)
