"""Training with compression learns as well as without, and resumes from a checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs import plugins
from configs.settings.train import TrainConfig
from tests.train.retained import assert_resumes, losses
from tests.train.workers import results_of
from train.sync.ranks import Ranks

pytestmark = pytest.mark.slow

EXACT = "all_reduce none"
CASES = [
    ("all_reduce", "none"),
    *(("all_reduce", compressor) for compressor in plugins.names("train.sync.compression")),
    *((mode, compressor) for mode in ("ddp", "accelerate") for compressor in ("bf16", "powersgd")),
]
BASE = TrainConfig(
    task="synthetic", lr=0.01, epochs=3, batch_size=64, device="cpu", split="3,1",
    bucket_mb=0.004, compress_rank=1,
)  # fmt: skip


def case(ranks: Ranks, mode: str, compressor: str, disk: Path) -> dict[str, Any]:
    whole = assert_resumes(
        ranks, replace(BASE, sync=mode, compress=compressor), disk, f"{mode} {compressor}"
    )
    return {
        "accuracy": whole.history.evaluations[-1].metrics["accuracy"],
        "losses": losses(whole.history),
    }


def work(ranks: Ranks, folder: str) -> dict[str, Any]:
    """Run all cases with a separate disk per rank; only rank 0's disk has checkpoints."""
    disk = Path(folder) / f"disk{ranks.rank}"
    return {
        f"{mode} {compressor}": case(ranks, mode, compressor, disk / f"{mode}-{compressor}")
        for mode, compressor in CASES
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The workers check that ranks have the same bits and that a resumed run equals a whole one."""
    folder = tmp_path_factory.mktemp("results")
    return results_of(work, 2, folder, str(folder), timeout_s=840)[0]


@pytest.mark.parametrize("case", [" ".join(case) for case in CASES[1:]])
def test_compressed_training_learns_as_well_as_the_exact_one(results, case):
    assert results[EXACT]["accuracy"] > 0.98
    assert results[case]["accuracy"] > results[EXACT]["accuracy"] - 0.02
    gaps = [
        abs(a - b) for a, b in zip(results[case]["losses"], results[EXACT]["losses"], strict=True)
    ]
    assert max(gaps) > 0 and results[case]["losses"][0] == pytest.approx(
        results[EXACT]["losses"][0]
    )
