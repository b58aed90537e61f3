"""Communication time counts in its own step, with torch's DDP and with all_reduce."""

import threading
import time

import pytest
import torch
from torch import nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from train.sync.base import SyncOptions
from train.sync.ddp.torch_ddp import DdpSync
from train.sync.modes.all_reduce import AllReduce
from train.sync.ranks import Ranks
from train.sync.step_times import StepTimer

SLOW, SLOW_S, STEPS = 2, 3.0, 5


@pytest.mark.parametrize("kind", [DdpSync, AllReduce])
def test_slow_collective_counts_in_the_seconds_of_its_own_step(kind, alone):
    """In `comm_s`, and in the seconds that the step waited for other ranks."""
    sync = kind(Ranks(), SyncOptions(sparse_rows=False))
    model = DistributedDataParallel(nn.Linear(2, 2), gradient_as_bucket_view=True)
    sync.wrapped(model)
    timer = StepTimer(model)
    comm: list[float] = []
    waited: list[float] = []
    elapsed: list[float] = []  # the real seconds of each step, however slow the machine is

    def send(flat: torch.Tensor) -> Future[torch.Tensor]:
        sent: Future[torch.Tensor] = Future()
        slow_s = SLOW_S if len(comm) == SLOW else 0
        threading.Timer(slow_s, sent.set_result, [flat]).start()
        return sent

    sync._hook.start = send
    if sync.hook_choice.hook_class is None:
        model.register_comm_hook(None, lambda state, bucket: send(bucket.buffer()))
    while len(comm) < STEPS:
        began = time.monotonic()
        sync.backward(model(torch.ones(1, 2)).sum())
        waited.append(timer.end_step().seconds()["sync"])
        sync.sync(model, sync.used(model))
        comm.append(sync.comm_s)
        elapsed.append(time.monotonic() - began)
    for seconds in (comm, waited):
        assert seconds[SLOW] >= 0.5 * SLOW_S  # counting starts a little later
        assert all(it <= limit for it, limit in zip(seconds, elapsed, strict=True))
