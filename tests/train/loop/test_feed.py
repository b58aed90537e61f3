"""Batches are read ahead only where that changes nothing, and results come one batch late."""

import itertools
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from configs.settings.train import TrainConfig
from tests.train import retained
from train.loop import feed
from train.loop.feed import Feed, delayed_by_one

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


class Placed:
    """A stand-in for a tensor on a GPU."""

    def __init__(self, number):
        self.number = number
        self.used_in = []

    def record_stream(self, stream):
        self.used_in.append(stream)


@pytest.fixture
def streams(monkeypatch):
    """Return the list of streams that the computing stream has waited for."""
    waited = []
    computing = SimpleNamespace(wait_stream=waited.append)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "copies")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    return waited


def test_only_the_batches_of_the_next_step_are_fetched(streams):
    numbers = itertools.count()
    place = lambda number: {"x": Placed(number)}  # noqa: E731
    batches = Feed(numbers, iter([2, 1]), GPU, place)
    first, second = next(batches), next(batches)
    assert [first["x"].number, second["x"].number] == [0, 1]
    assert streams == ["copies"] * 2 and len(first["x"].used_in) == 1
    batches.fetch()
    assert next(batches)["x"].number == 2
    batches.fetch()  # no step is left
    assert next(numbers) == 3


def test_results_of_a_gpu_come_when_the_next_pass_has_begun():
    begun = []

    def passes():
        for number in range(3):
            begun.append(number)
            yield number

    seen = [(number, len(begun)) for number in delayed_by_one(passes(), GPU)]
    assert seen == [(0, 2), (1, 3), (2, 3)]
    begun.clear()
    assert [(number, len(begun)) for number in delayed_by_one(passes(), CPU)] == [
        (0, 1),
        (1, 2),
        (2, 3),
    ]


@pytest.mark.parametrize(
    ("asked", "device", "processes"), [(None, CPU, 0), (None, GPU, 2), (0, GPU, 0), (4, CPU, 4)]
)
def test_loader_processes_by_device(asked, device, processes):
    config = TrainConfig(data_workers=asked)
    assert feed.processes(config, device) == processes


@pytest.mark.parametrize("processes", [0, 2])
def test_loader_processes_change_no_bit_of_resumed_run_or_score(processes, tmp_path):
    whole, _ = retained.run(retained.CONFIG, tmp_path / "whole")
    config = replace(retained.CONFIG, data_workers=processes)
    retained.run(replace(config, max_steps=5, checkpoint_every="5"), tmp_path / "part")
    resumed = replace(config, resume=str(tmp_path / "part" / "checkpoints"))
    again, _ = retained.run(resumed, tmp_path / "again")
    assert again.history.steps[-1].step == 16
    of_whole = retained.results(whole)
    assert all(of_whole[step] == got for step, got in retained.results(again).items())
    assert retained.bits(again) == retained.bits(whole)
    scores = [one.metrics for one in again.history.evaluations]
    assert scores == [one.metrics for one in whole.history.evaluations]
