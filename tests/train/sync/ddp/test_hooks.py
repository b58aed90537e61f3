"""What hooks do on a GPU: streams, futures and events. Test doubles replace the device."""

import threading

import pytest
import torch
from torch import nn
from torch.futures import Future

from train.sync.base import SyncOptions
from train.sync.ddp import hooks
from train.sync.ddp.hooks import BackgroundThread, BucketHook
from train.sync.ranks import Ranks

GPU = torch.device("cuda", 0)


class Stream:
    """A stream that writes what it is asked to do into `log`."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def record_event(self):
        self.log.append(f"{self.name}: event")
        return f"event of {self.name}"

    def wait_event(self, event):
        self.log.append(f"{self.name}: waits for {event}")

    def __enter__(self):
        self.before, current.stream = getattr(current, "stream", None), self

    def __exit__(self, *_):
        current.stream = self.before


current = threading.local()  # each thread has a current stream of its own


@pytest.fixture
def log(monkeypatch):
    """Yield a log of what the doubles of torch's streams and futures do."""
    log, counted = [], iter(range(9))

    class NewFuture:
        """A stand-in for torch's Future, which refuses a GPU's name on a machine without one."""

        def __getitem__(self, _):
            return Future

        def __call__(self, *, devices=None):
            future = Future()
            set_result = future.set_result

            def completed(result):
                log.append(f"{current.stream.name}: future of {devices}")
                set_result(result)

            future.set_result = completed
            return future

    monkeypatch.setattr(hooks, "Future", NewFuture())
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(f"new {next(counted)}", log))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current.stream)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    with Stream("of the script", log):
        yield log


def test_gpu_background_work_waits_for_stream_of_pass(log):
    thread = BackgroundThread(Ranks(), SyncOptions(), GPU)
    future = thread.promise(lambda: log.append(f"{current.stream.name}: work"))
    future.wait()
    assert log == [
        "of the script: event",
        "new 0: waits for event of of the script",
        "new 0: work",
        f"new 0: future of {[GPU]}",
    ]


def test_gpu_background_error_is_raised_by_its_future(log):
    def broken():
        raise RuntimeError("connection closed by peer")

    thread = BackgroundThread(Ranks(), SyncOptions(), GPU)
    with pytest.raises(RuntimeError, match="closed by peer"):
        thread.promise(broken).wait()


class OnGpu:
    """A gradient on a GPU, with only the attributes that a hook uses."""

    is_cuda, is_sparse, device, ndim = True, False, GPU, 1

    def detach(self):
        return self

    def numel(self):
        return 0


def test_gpu_parts_are_awaited_in_a_separate_stream(log):
    parts = [Future(), Future()]
    whole = OnGpu()
    future = hooks.all_done(parts, whole, Stream("beside", log))
    for part in parts:
        part.set_result(whole)
    assert future.wait() is whole
    assert log == [f"beside: future of {[GPU]}"]


class Bucket:
    def __init__(self, number, count):
        self.number, self.count = number, count

    def index(self):
        return self.number

    def is_last(self):
        return self.number == self.count - 1

    def buffer(self):
        return OnGpu()


@pytest.mark.parametrize("is_timed", [True, False])
def test_ready_events_are_of_last_pass_and_only_if_timed(is_timed, log, alone, monkeypatch):
    events = iter(range(99))
    monkeypatch.setattr(hooks, "marked", lambda: next(events))
    hook = BucketHook(nn.Linear(1, 1), Ranks(), SyncOptions())
    hook.is_timed = is_timed
    ready = []
    for _ in range(3):  # passes
        for number in range(4):
            hook.average(None, Bucket(number, 4))
        ready.append([*hook.ready])
    assert ready == ([[0, 1], [2, 3], [4, 5]] if is_timed else [[]] * 3)
