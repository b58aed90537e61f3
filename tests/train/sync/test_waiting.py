"""Waiting for another rank counts as `sync_s`, and as no other phase, in every mode and loop."""

import itertools
import time
from collections.abc import Mapping
from dataclasses import asdict
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
from train.sync.plugins import own_plugins
from train.sync.ranks import Ranks, waits

RANKS, LATE = 3, 1
SLEEP_S = 0.5
TRIES = 8  # the machine itself may cause delays
LOOPED = ("all_reduce", "gather_scatter", "zero1")
SETTINGS: dict[str, dict[str, Any]] = {
    **{mode: {"sync": mode} for mode in own_plugins("modes") if mode != "single"},
    **{f"{mode}, after the pass": {"sync": mode, "overlap": False} for mode in LOOPED},
    **{kind: {"sync": "all_reduce", "compress": kind} for kind in own_plugins("compression")},
    "batchnorm": {"sync": "ddp", "batchnorm": "synced"},
}
LOOPS = ("muster.sync", "torch's DDP", "after the passes")


class Late(nn.Module):
    """The identity; in a training, its third pass takes longer on rank 1."""

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


def parts(record: Mapping[str, float]) -> list[float]:
    """Return the seconds of sync, of all other phases, and of the whole step."""
    phases = ("data_s", "forward_s", "backward_s", "optimizer_s")
    return [record["sync_s"], sum(record[name] for name in phases), record["step_s"]]


def by_trainer(ranks: Ranks, settings: dict[str, Any]) -> list[float]:
    """Return `parts` of the third step that the trainer runs."""
    config = TrainConfig(
        task="synthetic", batch_size=12, max_steps=4, sync_every=3, evaluate="never", device="cpu",
        **{"batchnorm": "local"} | settings,
    )  # fmt: skip
    step = trainer_of(config, ranks, LateMlp(config, ranks.rank)).fit().steps[2]
    return parts(asdict(step))


def by_record(ranks: Ranks, loop: str, folder: Path) -> list[float]:
    """Return the same, as `muster.record` writes it in a user's own loop."""
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
    return parts(records(folder / str(number), ranks.rank, "step")[2])


def seconds(ranks: Ranks, folder: str) -> dict[str, torch.Tensor]:
    """Return, for each case, `parts` of a step with a late rank, for all tries and ranks."""
    cases = {
        name: lambda settings=settings: by_trainer(ranks, settings)
        for name, settings in SETTINGS.items()
    }
    for loop in LOOPS:
        cases[loop] = lambda loop=loop: by_record(ranks, loop, Path(folder))
    measured: dict[str, torch.Tensor] = {}
    for name, case in cases.items():
        tries: list[torch.Tensor] = []
        while len(tries) < TRIES and (not tries or problems(measured[name])):
            tries.append(ranks.all_gather(torch.tensor(case(), dtype=torch.float64)))
            measured[name] = torch.stack(tries)
    return measured


def problems(measured: torch.Tensor) -> list[str]:
    """Describe where seconds (tries, ranks, 3) of sync or computing are counted wrongly.

    On a busy machine, computing takes longer, and the other ranks wait less for the late rank. So
    the best of all tries counts for each number: a counting error would show in all of them.
    """
    least, most = measured.amin(0).tolist(), measured.amax(0).tolist()
    # the late rank does not wait, and the others hardly compute
    is_short = [0 if rank == LATE else 1 for rank in range(RANKS)]
    return [
        f"rank {rank}: in sync {least[rank][0]:.2f} to {most[rank][0]:.2f} s, "
        f"computing {least[rank][1]:.2f} to {most[rank][1]:.2f} s"
        for rank in range(RANKS)
        if not (
            least[rank][is_short[rank]] <= 0.2 * SLEEP_S
            and most[rank][1 - is_short[rank]] >= 0.8 * SLEEP_S
        )
    ]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return the measurements of all cases, from a single start of the ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    measurements = results_of(seconds, RANKS, folder, str(folder), timeout_s=840)[0]
    assert {*measurements} == {*SETTINGS, *LOOPS}
    return measurements


@pytest.mark.slow
def test_a_late_rank_is_waited_for_in_sync_alone(measured):
    wrong = {name: problems(tries) for name, tries in measured.items()}
    assert {name: lines for name, lines in wrong.items() if lines} == {}


@pytest.mark.slow
def test_phases_add_up_to_the_step_in_every_mode(measured):
    for name, tries in measured.items():
        sync_s, computing_s, step_s = tries.unbind(-1)
        assert (sync_s + computing_s - step_s).abs().max() < 1e-6, name


def test_nested_waits_are_counted_once(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)
    before = waits.seconds
    waits.during(lambda: waits.during(time.perf_counter))
    assert waits.seconds - before == 2
