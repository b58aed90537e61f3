"""Steps without end: a plain script that uses torchrun's variables."""

import argparse
import itertools
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SAVE_S = 5.0  # how long saving takes after SIGTERM


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--timeout-s", type=float, default=600)
    parser.add_argument("--saves", action="store_true")
    args = parser.parse_args()

    def save(number: int, frame: object) -> None:
        time.sleep(SAVE_S)
        (args.folder / "saved").write_text("all of it")
        sys.exit(0)

    # Ranks join only when all are there, however long that takes. Each attempt has another port.
    here = args.folder / os.environ["MASTER_PORT"]
    here.mkdir(exist_ok=True)
    (here / os.environ["RANK"]).touch()
    while len(list(here.iterdir())) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.05)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout_s))
    rank = dist.get_rank()
    if args.saves and rank == 0:  # as is usual: the others have nothing to save
        signal.signal(signal.SIGTERM, save)
    for step in itertools.count(1):
        dist.all_reduce(torch.zeros(50_000))
        print(f"rank {rank}: step {step}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
