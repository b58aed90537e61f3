"""One process with a process group of its own: steps of DDP, one of which sends slowly.

Started by test_ddp.py: `ddp_worker.py STORE`. Prints `comm_s` of every step as JSON.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from train.sync.base import SyncOptions
from train.sync.modes.ddp import Ddp
from train.sync.ranks import Ranks
from train.sync.torch_ddp import ddp_options

SLOW, SLOW_S, STEPS = 2, 0.3, 5


def main() -> None:
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
    options = SyncOptions()
    sync = Ddp(Ranks(), options)
    model = DistributedDataParallel(nn.Linear(2, 2), **ddp_options(options))
    sync.wrapped(model)
    step = 0

    def send(_: object, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        time.sleep(SLOW_S if step == SLOW else 0)
        sent: Future[torch.Tensor] = Future()
        sent.set_result(bucket.buffer())
        return sent

    model.register_comm_hook(None, send)
    seconds = []
    while step < STEPS:
        sync.backward(model(torch.ones(1, 2)).sum())
        sync.sync(model)
        seconds.append(sync.comm_s)
        step += 1
    print(json.dumps(seconds))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
