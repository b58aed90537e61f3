"""A loop that computes all the time; rank 0 prints the median seconds of a step."""

import sys
import time
from itertools import pairwise
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, SAMPLES = 1024, 4, 256
WARM_UP = 3


def main(steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(SAMPLES, WIDTH)
    times = [time.perf_counter()]
    for _ in range(WARM_UP + steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter())
    if dist.get_rank() == 0:
        each = [after - before for before, after in pairwise(times)]
        print(f"step_s {median(each[WARM_UP:]):.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
