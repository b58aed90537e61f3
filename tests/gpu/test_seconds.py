"""A step's seconds on a GPU are the device's, as measured by events beside the phases."""

import json

import pytest
import torch
from torch import nn

from train.batches import steps
from train.program.recorder import record
from train.sync.step_times import timer_of

pytestmark = pytest.mark.needs("GPU")

FORWARD, BACKWARD, OPTIMIZER = 20_000_000, 40_000_000, 10_000_000  # cycles of the device's clock
AHEAD = 100_000_000  # before each step, so that the host has queued it before the device begins
STEPS = 4


class Busy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given):
        torch.cuda._sleep(FORWARD)
        return given.clone()

    @staticmethod
    def backward(ctx, gradient):
        torch.cuda._sleep(BACKWARD)
        return gradient


class Net(nn.Linear):
    """The device is busy in its passes; the host has only to call it."""

    def forward(self, points):
        return Busy.apply(super().forward(points))


def marked():
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def a_step(model, points):
    """Events before and after each phase."""
    torch.cuda._sleep(AHEAD)
    events = [marked()]
    loss = model(points).sum()
    events.append(marked())
    loss.backward()
    events.append(marked())
    torch.cuda._sleep(OPTIMIZER)
    events.append(marked())
    return loss, events


def seconds_between(events):
    events[-1].synchronize()
    pairs = zip(("forward", "backward", "optimizer"), events, events[1:], strict=False)
    return {name: begin.elapsed_time(end) / 1e3 for name, begin, end in pairs}


@pytest.fixture(params=["default", "other"])
def stream(request):
    """The stream in which a script trains."""
    chosen = torch.cuda.default_stream() if request.param == "default" else torch.cuda.Stream()
    with torch.cuda.stream(chosen):
        yield chosen
    torch.cuda.synchronize()


@pytest.fixture
def model():
    net = Net(8, 8).cuda()
    net(torch.ones(8, 8, device="cuda")).sum().backward()  # loads the kernels
    torch.cuda.synchronize()
    return net


def test_seconds_of_a_step_are_those_of_events_beside_it(stream, model):
    timer, points = timer_of(model), torch.ones(8, 8, device="cuda")
    for _ in range(STEPS):
        timer.begin()
        _, events = a_step(model, points)
        times = timer.end_step()
    seconds, beside = times.seconds(), seconds_between(events)
    for name, taken_s in beside.items():
        assert seconds[name] == pytest.approx(taken_s, rel=0.05, abs=5e-4), name
    assert sum(seconds[name] for name in ("data", *beside, "sync")) == pytest.approx(
        seconds["step"], rel=1e-3
    )


def test_recorded_seconds_are_those_of_events_beside_them(stream, model, tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_RUN_DIR", str(tmp_path))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    points, beside = torch.ones(8, 8, device="cuda"), []
    for step in range(1, STEPS + 1):
        loss, events = a_step(model, points)
        record(step, loss=loss, model=model, samples=8)
        beside.append(seconds_between(events))
    lines = (tmp_path / "metrics" / "rank_00000.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "forward_s" in row]
    assert len(rows) == STEPS
    for row, events_s in list(zip(rows, beside, strict=True))[1:]:  # the first begins before
        for name, taken_s in events_s.items():
            # the collective of the loss belongs to the optimizer's phase
            assert row[f"{name}_s"] == pytest.approx(taken_s, rel=0.05, abs=2e-3), name


def test_split_auto_compares_seconds_of_the_device(model):
    """Not of the host, which only calls kernels."""
    plan = steps.steps(torch.zeros(64, 8), batch_size=8, split="auto", model=model)
    points, passes_s = torch.ones(8, 8, device="cuda"), []
    taken = []
    plan._pace.add = lambda seconds, amount: taken.append(seconds)
    for _ in plan.segment():
        _, events = a_step(model, points)
        passes_s.append(seconds_between(events)["forward"])
    assert taken[1:] == pytest.approx(passes_s[1:], rel=0.05, abs=5e-4)
