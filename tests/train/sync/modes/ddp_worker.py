"""One process with a process group of its own: steps of DDP, one of which sends slowly.

Started by test_ddp.py: `ddp_worker.py STORE`. Prints of every step
what DDP communicated, and what a mode of ours waited for, as JSON.
"""

import json
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from train.sync.base import SyncOptions
from train.sync.ddp.torch_ddp import DDP_OPTIONS, DdpSync
from train.sync.modes.all_reduce import AllReduce
from train.sync.ranks import Ranks

SLOW, SLOW_S, STEPS = 2, 3.0, 5


def seconds(kind: type[DdpSync], name: str) -> list[float]:
    """Of each step, what `kind` tells of it by that name."""
    sync = kind(Ranks(), SyncOptions(sparse_rows=False))
    model = DistributedDataParallel(nn.Linear(2, 2), **DDP_OPTIONS)
    sync.wrapped(model)
    found: list[float] = []

    def send(flat: torch.Tensor) -> Future[torch.Tensor]:
        sent: Future[torch.Tensor] = Future()
        slow_s = SLOW_S if len(found) == SLOW else 0
        threading.Timer(slow_s, sent.set_result, [flat]).start()
        return sent

    if sync.way.kind is None:
        model.register_comm_hook(None, lambda state, bucket: send(bucket.buffer()))
    else:
        sync._hook.start = send
    while len(found) < STEPS:
        sync.backward(model(torch.ones(1, 2)).sum())
        sync.sync(model, sync.used(model))
        found.append(getattr(sync, name))
    return found


def main() -> None:
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
    print(json.dumps([seconds(DdpSync, "comm_s"), seconds(AllReduce, "waited_s")]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
