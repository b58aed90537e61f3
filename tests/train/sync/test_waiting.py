"""Waiting for another rank is `sync_s`, and no other phase, in every mode and in any loop."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import muster
from configs.settings.train import TrainConfig
from tests.train.matrix_tasks import Mlp
from tests.train.on_ranks import trainer_of
from tests.train.workers import records, results_of
from train.sync.base import plugin_names
from train.sync.ranks import Ranks, waits

RANKS, LATE = 3, 1
SLEEP_S = 0.5
TRIES = 5  # this machine may itself be late
SETTINGS: dict[str, dict[str, Any]] = {
    **{mode: {"sync": mode} for mode in plugin_names("modes") if mode != "single"},
    "after the pass": {"sync": "all_reduce", "overlap": False},
    "int8": {"sync": "all_reduce", "compress": "int8"},
    "batchnorm": {"sync": "ddp", "batchnorm": "synced"},
}
LOOPS = ("muster.sync", "torch's DDP", "after the passes")


class Late(nn.Module):
    """The identity; in its third pass of a training, it takes longer on rank 1."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if self.passes == 3 and torch.distributed.get_rank() == LATE:
            time.sleep(SLEEP_S)
        return points


def network(normalised: bool) -> nn.Module:
    norm = [nn.BatchNorm1d(12)] if normalised else []
    return nn.Sequential(nn.Linear(6, 12), Late(), *norm, nn.Tanh(), nn.Linear(12, 2))


class LateMlp(Mlp):
    def __init__(self, config: TrainConfig, rank: int) -> None:
        super().__init__(config, rank)
        self.normalised = config.batchnorm == "synced"

    def network(self) -> nn.Module:
        return network(self.normalised)


def by_trainer(ranks: Ranks, settings: dict[str, Any]) -> list[float]:
    """The third step's seconds of sync, and of all else that is a phase."""
    config = TrainConfig(
        task="synthetic", batch_size=12, max_steps=4, sync_every=3, evaluate="never", device="cpu",
        **{"batchnorm": "local"} | settings,
    )  # fmt: skip
    step = trainer_of(config, ranks, LateMlp(config, ranks.rank)).fit().steps[2]
    return [step.sync_s, step.data_s + step.forward_s + step.backward_s + step.optimizer_s]


def by_record(ranks: Ranks, loop: str, folder: Path) -> list[float]:
    """The same, as `muster.record` writes it in a loop of one's own."""
    model: Any = network(loop != "muster.sync")
    is_last = loop == "after the passes"  # it sleeps before the loss is recorded
    inner = model[1]
    if is_last:
        model[1] = nn.Identity()
    model = muster.sync(model) if loop == "muster.sync" else DistributedDataParallel(model)
    number = int(torch.randint(2**40, (1,)).item())
    number = int(ranks.all_gather(torch.tensor([number]))[0].item())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_RUN_DIR", str(folder / str(number)))
        for _ in range(4):
            model(torch.ones(4, 6)).sum().backward()
            if is_last:
                inner(torch.ones(1))
            muster.record(loss=1.0, model=model)
    row = records(folder / str(number), ranks.rank, "step")[2]
    own = ("data_s", "forward_s", "backward_s", "optimizer_s")
    return [row["sync_s"], sum(row[name] for name in own)]


def seconds(ranks: Ranks, folder: str) -> dict[str, torch.Tensor]:
    """Of each case, of all ranks: seconds of sync and of computing in a step with a late rank."""
    cases = {name: lambda own=own: by_trainer(ranks, own) for name, own in SETTINGS.items()}
    for loop in LOOPS:
        cases[loop] = lambda loop=loop: by_record(ranks, loop, Path(folder))
    measured: dict[str, torch.Tensor] = {}
    for name, case in cases.items():
        for _ in range(TRIES):
            measured[name] = ranks.all_gather(torch.tensor(case()))
            if not problems(measured[name]):
                break
    return measured


def problems(of_ranks: torch.Tensor) -> list[str]:
    """Where seconds (ranks, 2) of sync and of computing are not what they mean."""
    return [
        f"rank {rank}: sync {sync_s:.2f} s, computing {computing_s:.2f} s"
        for rank, (sync_s, computing_s) in enumerate(of_ranks.tolist())
        if not (
            sync_s <= 0.2 * SLEEP_S <= 0.8 * SLEEP_S <= computing_s
            if rank == LATE
            else computing_s <= 0.2 * SLEEP_S <= 0.8 * SLEEP_S <= sync_s
        )
    ]


def test_a_late_rank_is_waited_for_in_sync_alone(tmp_path):
    measured = results_of(seconds, RANKS, tmp_path, str(tmp_path))[0]
    assert {*measured} == {*SETTINGS, *LOOPS}
    wrong = {name: problems(of_ranks) for name, of_ranks in measured.items()}
    assert {name: lines for name, lines in wrong.items() if lines} == {}


def test_seconds_within_each_other_are_waited_for_once(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)
    before = waits.seconds
    waits.during(lambda: waits.during(time.perf_counter))
    assert waits.seconds - before == 2
