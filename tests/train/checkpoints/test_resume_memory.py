"""A rank that resumes needs little more memory than a rank that trains."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import muster
from tests.train.memory import settled_peak
from tests.train.retained import CONFIG, run
from tests.train.workers import results_of
from train.tasks import synthetic

pytestmark = pytest.mark.slow

WIDTH, LAYERS = 1024, 14  # 56 MiB of parameters
MODES = ("ddp", "zero1", "fsdp", "local_sgd")
MOST = 1.3  # times the peak in training


class Deep(synthetic.Synthetic):
    def build_model(self):
        layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        return nn.Sequential(nn.Linear(8, WIDTH), *layers, nn.Linear(WIDTH, 2))


def peaks_of(ranks, folder):
    """Return peak memory of a training and of its resume, for each mode and a handwritten loop."""
    found = {mode: _peaks_in_mode(ranks, Path(folder, mode), mode) for mode in MODES}
    found["muster.checkpoints"] = _peaks_by_hand(ranks, Path(folder, "by-hand"))
    return found


def _peaks_in_mode(ranks, folder, mode):
    config = replace(CONFIG, sync=mode, max_steps=2, checkpoint_every="2", batch_size=8)
    config = replace(config, evaluate="never")
    again = replace(config, resume=str(folder / "first"))
    with settled_peak() as training:
        run(config, folder / "first", task=Deep(config), ranks=ranks)
    with settled_peak() as resuming:
        run(again, folder / f"again{ranks.rank}", task=Deep(again), ranks=ranks)
    return training[0], resuming[0]


def _peaks_by_hand(ranks, folder):
    with settled_peak() as training:
        _trained(folder, steps=2)
    with settled_peak() as resuming:
        _trained(folder, steps=2)
    return training[0], resuming[0]


def _trained(folder, steps):
    torch.manual_seed(0)
    model = muster.sync(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))))
    optimizer = torch.optim.AdamW(model.parameters())
    with muster.checkpoints(folder, model=model, optimizer=optimizer) as checkpoints:
        for _ in range(checkpoints.resume(), steps):
            model(torch.ones(2, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if checkpoints.step < steps:
            checkpoints.save(steps)


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peaks")
    return results_of(peaks_of, 2, folder, str(folder))


@pytest.mark.parametrize("case", [*MODES, "muster.checkpoints"])
def test_resume_needs_little_more_memory_than_training(peaks, case):
    in_training = peaks[1][case][0]  # of a rank that writes no checkpoint
    assert all(of_rank[case][1] < MOST * in_training for of_rank in peaks)
