"""Workers that train alone between averages: equal where they should be, and as often as asked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.settings.train import TrainConfig
from tests.train.matrix_tasks import Patchy
from tests.train.on_ranks import trainer_of
from tests.train.retained import train
from tests.train.sync.compression.test_compressed_training import CUT, bits, losses
from tests.train.workers import results_of
from train.loop.trainer import Trainer
from train.sync.ranks import Ranks

WAYS = ["local SGD", "DiLoCo"]
# The third has no samples.
BASE = TrainConfig(
    task="synthetic", sync="local_sgd", lr=0.01, epochs=3, batch_size=64, device="cpu",
    split="3,1,0", sync_every=4,
)  # fmt: skip
DILOCO = {"outer_lr": 0.7, "outer_momentum": 0.9}


def same_everywhere(ranks: Ranks, trainer: Trainer) -> bool:
    return bool((ranks.all_gather(bits(trainer)) == bits(trainer)).all())


def every_step(ranks: Ranks, disk: Path) -> dict[str, Any]:
    """A round after every step of plain SGD, beside the exact mode."""
    plain = replace(
        BASE, optimizer="sgd", momentum=0.0, lr=0.1, max_grad_norm=0.0, dropout=0.0, epochs=1,
        sync_every=1, precision="fp64",
    )  # fmt: skip
    local = train(ranks, plain, disk / "local")
    exact = train(ranks, replace(plain, sync="all_reduce"), disk / "exact")
    params = [torch.cat([p.flatten() for p in one.model.parameters()]) for one in (local, exact)]
    return {
        "losses": torch.tensor([losses(local), losses(exact)], dtype=torch.float64),
        "params": torch.stack(params).detach(),
    }


def goes_on(ranks: Ranks, config: TrainConfig, disk: Path) -> dict[str, bool]:
    """A run that makes a checkpoint, and one that ends there and is resumed.

    Not two of them: where the disk is still busy with one, the next comes later.
    """
    config = replace(config, batch_size=256, checkpoint_every=str(CUT), max_steps=2 * CUT - 1)
    whole = train(ranks, config, disk / "whole")
    train(ranks, replace(config, max_steps=CUT), disk / "cut")
    again = train(ranks, replace(config, resume="auto"), disk / "a", disk / "cut" / "checkpoints")
    return {
        "same on all ranks": same_everywhere(ranks, whole),
        "same losses": losses(again) == losses(whole)[CUT:],
        "same bits": torch.equal(bits(again), bits(whole)),
    }


def patchy(ranks: Ranks) -> bool:
    """Whether ranks agree where each has used other parameters than the others."""
    config = replace(BASE, batch_size=16, split="even", dropout=0.0, weight_decay=0.3)
    trainer = trainer_of(config, ranks, Patchy(config))
    trainer.fit()
    return same_everywhere(ranks, trainer)


def rounds(ranks: Ranks, disk: Path) -> dict[str, Any]:
    """What two epochs of ten steps hand to collectives, with a round every four steps."""
    config = replace(BASE, epochs=2, train_samples=640, evaluate="end")
    trainer = train(ranks, config, disk)
    return {
        "payload": [one.payload_bytes for one in trainer.history.steps],
        "model": sum(param.nbytes for param in trainer.model.parameters()),
        "same": same_everywhere(ranks, trainer),
    }


def work(ranks: Ranks, folder: str) -> dict[str, Any]:
    """Each rank has a disk of its own, of which only rank 0's holds checkpoints."""
    disk = Path(folder) / f"disk{ranks.rank}"
    found = {
        "every step": every_step(ranks, disk / "every"),
        "patchy": patchy(ranks),
        "rounds": rounds(ranks, disk / "rounds"),
    }
    for name, config in (("local SGD", BASE), ("DiLoCo", replace(BASE, **DILOCO))):
        found[name] = goes_on(ranks, config, disk / name)
        trained = train(ranks, replace(config, split="even", epochs=6), disk / f"even-{name}")
        found[name]["accuracy"] = trained.history.evaluations[-1].metrics["accuracy"]
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("found")
    return results_of(work, 3, folder, str(folder), timeout_s=840)[0]


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
