"""Workers that train alone between averages: equal where they should be, and as often as asked."""

from pathlib import Path

import pytest
import torch

from tests.train.workers import run_on_ranks

WORKER = str(Path(__file__).with_name("local_sgd_worker.py"))
WAYS = ["local SGD", "DiLoCo"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("found")
    run_on_ranks(WORKER, 3, str(folder), timeout_s=840)
    return torch.load(folder / "found.pt", weights_only=True)


def test_with_a_round_after_every_step_of_plain_sgd_it_is_the_exact_mode(found):
    for name in ("losses", "params"):
        local, exact = found["every step"][name]
        torch.testing.assert_close(local, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_at_the_end_all_ranks_hold_the_same_bits(found, way):
    assert found[way]["same on all ranks"]
    assert found["rounds"]["same"]


@pytest.mark.parametrize("way", WAYS)
def test_going_on_is_as_never_having_stopped(found, way):
    """With the same checkpoints: making one is a round out of turn."""
    assert found[way]["same losses"] and found[way]["same bits"]


@pytest.mark.parametrize("way", WAYS)
def test_it_learns(found, way):
    assert found[way]["accuracy"] > 0.95


def test_ranks_that_used_other_parameters_agree_too(found):
    assert found["patchy"]


def test_only_a_round_hands_something_over_and_that_is_the_model_once(found):
    rounds = found["rounds"]
    assert rounds["payload"] == [rounds["model"] * (step % 4 == 0) for step in range(1, 21)]
