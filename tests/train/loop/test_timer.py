"""Seconds by phase, and on a GPU nothing waits before they are asked for."""

import time

import pytest
import torch

from train.loop.step import PhaseTimer


def test_phases_of_one_name_add_up():
    timer = PhaseTimer(torch.device("cpu"))
    for name in ("forward", "sync", "forward"):
        with timer.phase(name):
            time.sleep(0.01)
    seconds = timer.seconds
    assert list(seconds) == ["forward", "sync"]
    assert seconds["forward"] >= 0.02 and seconds["sync"] >= 0.01
    assert timer.total_s() >= sum(seconds.values())


class Event:
    """As torch.cuda's, of a device that needs 5 ms from one to the next."""

    made = 0
    waited_for = 0

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self, stream):
        Event.made += 1
        self.at_ms = 5.0 * Event.made

    def synchronize(self):
        Event.waited_for += 1

    def elapsed_time(self, later):
        return later.at_ms - self.at_ms


def test_on_a_gpu_events_are_recorded_and_waited_for_at_the_end_only(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    timer = PhaseTimer(torch.device("cuda"))
    for name in ("forward", "backward", "forward"):
        with timer.phase(name):
            pass
    assert Event.made == 7 and Event.waited_for == 0
    assert timer.seconds == pytest.approx({"forward": 0.01, "backward": 0.005})
    assert timer.total_s() == pytest.approx(0.035)
    assert Event.waited_for > 0
