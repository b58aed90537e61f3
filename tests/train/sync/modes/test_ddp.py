"""What is told of a step's communication is that step's, of torch's DDP and of a mode of ours."""

import threading

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
def test_seconds_of_communication_are_those_of_the_step_itself(kind, alone):
    """And those that the step has waited for it."""
    sync = kind(Ranks(), SyncOptions(sparse_rows=False))
    model = DistributedDataParallel(nn.Linear(2, 2), gradient_as_bucket_view=True)
    sync.wrapped(model)
    timer = StepTimer(model)
    found: list[float] = []
    waited: list[float] = []

    def send(flat: torch.Tensor) -> Future[torch.Tensor]:
        sent: Future[torch.Tensor] = Future()
        slow_s = SLOW_S if len(found) == SLOW else 0
        threading.Timer(slow_s, sent.set_result, [flat]).start()
        return sent

    sync._hook.start = send
    if sync.hook_choice.hook_class is None:
        model.register_comm_hook(None, lambda state, bucket: send(bucket.buffer()))
    while len(found) < STEPS:
        sync.backward(model(torch.ones(1, 2)).sum())
        waited.append(timer.end_step().seconds()["sync"])
        sync.sync(model, sync.used(model))
        found.append(sync.comm_s)
    for seconds in (found, waited):
        assert seconds[SLOW] == max(seconds) >= 0.9 * SLOW_S
