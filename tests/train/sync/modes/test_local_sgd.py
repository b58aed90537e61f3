"""Workers train alone between averages; they are equal when they should be, as often as asked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from configs.settings.train import TrainConfig
from tests.train.matrix_tasks import Patchy
from tests.train.on_ranks import trainer_of
from tests.train.retained import CUT, assert_resumes, assert_same_bits, losses, train
from tests.train.workers import results_of
from train.sync.ranks import Ranks

# The third rank has no samples.
BASE = TrainConfig(
    task="synthetic", sync="local_sgd", lr=0.01, epochs=3, batch_size=64, device="cpu",
    split="3,1,0", sync_every=4,
)  # fmt: skip
KINDS = {
    "local SGD": BASE,
    "DiLoCo": replace(BASE, outer_lr=0.7, outer_momentum=0.9),
}


def every_step(ranks: Ranks, disk: Path) -> None:
    """Check that with a round after every step of plain SGD, it equals the exact mode."""
    plain = replace(
        BASE, optimizer="sgd", momentum=0.0, lr=0.1, max_grad_norm=0.0, dropout=0.0, epochs=1,
        sync_every=1, precision="fp64",
    )  # fmt: skip
    local = train(ranks, plain, disk / "local")
    exact = train(ranks, replace(plain, sync="all_reduce"), disk / "exact")
    params = (list(trainer.model.parameters()) for trainer in (local, exact))
    torch.testing.assert_close(*params, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(losses(local.history), losses(exact.history), rtol=1e-12, atol=1e-12)


def patchy(ranks: Ranks) -> None:
    """Check that ranks agree although each has used different parameters."""
    config = replace(BASE, batch_size=16, split="even", dropout=0.0, weight_decay=0.3)
    trainer = trainer_of(config, ranks, Patchy(config))
    trainer.fit()
    assert_same_bits(ranks, trainer, "patchy")


def rounds(ranks: Ranks, disk: Path) -> dict[str, Any]:
    """Return the bytes sent in two epochs of ten steps, with a round every four steps."""
    config = replace(BASE, epochs=2, train_samples=640, evaluate="end")
    trainer = train(ranks, config, disk)
    assert_same_bits(ranks, trainer, "rounds")
    return {
        "payload": [record.payload_bytes for record in trainer.history.steps],
        "model": sum(param.nbytes for param in trainer.model.parameters()),
    }


def work(ranks: Ranks, folder: str) -> dict[str, Any]:
    """Run all checks with a separate disk per rank; only rank 0's disk has checkpoints."""
    disk = Path(folder) / f"disk{ranks.rank}"
    every_step(ranks, disk / "every")
    patchy(ranks)
    for name, config in KINDS.items():
        # The runs make the same checkpoint, because making one is an extra round. There is only
        # one: while the disk is still busy with it, a second would be delayed.
        often = {"checkpoint_every": str(CUT), "max_steps": 2 * CUT - 1, "batch_size": 256}
        assert_resumes(ranks, replace(config, **often), disk / name, name)
    return rounds(ranks, disk)


def test_rounds_are_exact_resumable_and_send_the_model_once(tmp_path):
    """The workers check that ranks have the same bits, and that runs equal their references."""
    rounds = results_of(work, 3, tmp_path, str(tmp_path), timeout_s=840)[0]
    assert rounds["payload"] == [rounds["model"] * (step % 4 == 0) for step in range(1, 21)]
