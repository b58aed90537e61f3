"""Gradients are the mean over ranks in whatever stream a script trains; two ranks share a GPU."""

import json
import subprocess
import sys

import pytest
import torch

from muster.checkout import CHECKOUT
from tests.gpu import streams_worker
from tests.gpu.streams_worker import CASES, RANKS

# Off the mean; powersgd is not near to it.
WITHIN = {"bf16": 1e-2, "fp16": 1e-3, "int8": 2e-2, "powersgd": 2.0}
STREAMS_WITHIN = {"powersgd": 1e-5}  # products of matrices; all else has the same bits
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gradients_in_any_stream_are_the_mean_over_ranks(tmp_path):
    """One start of both ranks for all cases: a start takes longer than all of them."""
    results = ranks_on("cuda:0", tmp_path)
    wrong = {
        (rank, case): off
        for rank, result in enumerate(results)
        for case, off in result.items()
        if off["other stream"] > STREAMS_WITHIN.get(case, 0) or off["mean"] > WITHIN.get(case, 1e-6)
    }
    assert len(results) == RANKS and all(result.keys() == CASES.keys() for result in results)
    assert wrong == {}
