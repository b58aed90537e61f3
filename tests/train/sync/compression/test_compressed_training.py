"""A training that compresses learns as well, sends less, and goes on from a checkpoint."""

from pathlib import Path

import pytest
import torch

from tests.train.sync.compression.training_worker import CASES
from tests.train.workers import run_on_ranks

EXACT = "all_reduce none"
COMPRESSED = [" ".join(case) for case in CASES[1:]]
WORKER = str(Path(__file__).with_name("training_worker.py"))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The worker holds that ranks have the same bits, and that a resumed run is the whole one."""
    folder = tmp_path_factory.mktemp("found")
    run_on_ranks(WORKER, 2, str(folder), timeout_s=840)
    return torch.load(folder / "found.pt", weights_only=True)


@pytest.mark.parametrize("case", COMPRESSED)
def test_it_learns_what_the_exact_gradients_learn(found, case):
    assert found[EXACT]["accuracy"] > 0.98
    assert found[case]["accuracy"] > found[EXACT]["accuracy"] - 0.02
    gaps = [abs(a - b) for a, b in zip(found[case]["losses"], found[EXACT]["losses"], strict=True)]
    assert max(gaps) > 0 and found[case]["losses"][0] == pytest.approx(found[EXACT]["losses"][0])


@pytest.mark.parametrize("case", COMPRESSED)
def test_the_records_have_fewer_bytes(found, case):
    """From the third step on: torch's PowerSGD sends the first two as they are."""
    (exact,) = set(found[EXACT]["payload"])
    (sent,) = set(found[case]["payload"][2:])
    if case.endswith(("fp16", "bf16")):
        assert sent == exact / 2
    assert sent < exact * (1 if case.endswith("int8") else 0.8)
