"""A training whose rank 2 waits for data at step 4: the program of docs/figures/run.svg."""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def load_data(step):
    if step == 4 and dist.get_rank() == 2:
        while True:  # a lock that is never released
            time.sleep(1)
    return torch.randn(16, 8)


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(1, 101):
        loss = model(load_data(step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
