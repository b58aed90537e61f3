"""Gradients are the mean over ranks in whatever stream a script trains; two ranks share a GPU."""

import json
import subprocess
import sys

import pytest
import torch

from muster.checkout import CHECKOUT
from tests.gpu import streams_worker
from tests.gpu.streams_worker import CASES, RANKS

WITHIN = {"bf16": 1e-2, "fp16": 1e-3, "int8": 2e-2}  # of the mean; powersgd is not near to it
FAR_S = 240


def ranks_on(device, folder):
    """What each of two ranks on this device has written."""
    command = [sys.executable, "-m", streams_worker.__name__]
    ranks = [
        subprocess.Popen([*command, str(rank), str(folder), device], cwd=CHECKOUT)
        for rank in range(RANKS)
    ]
    try:
        assert [rank.wait(FAR_S) for rank in ranks] == [0] * RANKS
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank_*.json"))]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return ranks_on("cuda:0", tmp_path_factory.mktemp("streams"))


@pytest.mark.parametrize("case", CASES)
def test_gradients_in_another_stream_are_those_of_the_default_stream(results, case):
    # the same bits, but for products of matrices
    limit = 1e-5 if case == "powersgd" else 0.0
    assert [result[case]["other stream"] for result in results] == [pytest.approx(0, abs=limit)] * 2


@pytest.mark.parametrize("case", [case for case in CASES if case != "powersgd"])
def test_gradients_are_the_mean_over_ranks_on_a_gpu(results, case):
    assert max(result[case]["mean"] for result in results) <= WITHIN.get(case, 1e-6)
