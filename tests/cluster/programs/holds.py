"""Rank 2 sleeps for ever, while the others wait for it."""

import time

import torch
import torch.distributed as dist


def load_data():
    time.sleep(1000)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    print(f"total {total.item():g}", flush=True)
    if rank == 2:
        load_data()
    dist.barrier()


main()
