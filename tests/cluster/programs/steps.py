"""Steps without end: a plain script under torchrun's variables, which breaks down where it is told.

A file `fault_2` in the folder tells rank 2 how; a file `over`, seen by all, ends the program.
"""

import argparse
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SAVE_S = 5.0  # what catches SIGTERM takes so long


def break_down(how: str) -> None:
    if how == "raise":
        raise ValueError("sample 17 is empty")
    if how == "exit":
        sys.exit(7)
    if how == "abort":
        os.abort()
    if how == "eat":
        eaten = []
        while True:
            eaten.append(torch.ones(8_000_000))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--timeout-s", type=float, default=600)
    parser.add_argument("--saves", action="store_true")
    args = parser.parse_args()

    def save(number: int, frame: object) -> None:
        time.sleep(SAVE_S)
        (args.folder / "saved").write_text("all of it")
        sys.exit(0)

    # They meet when all are there: how soon that is says nothing.
    (args.folder / f"here_{os.environ['RANK']}").touch()
    while len(list(args.folder.glob("here_*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.05)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout_s))
    rank = dist.get_rank()
    if args.saves and rank == 0:  # as is usual: the others have nothing to save
        signal.signal(signal.SIGTERM, save)
    fault = args.folder / f"fault_{rank}"
    is_over, step = False, 0
    while not is_over:
        if fault.exists():
            break_down(fault.read_text())
        votes = torch.full((50_000,), float((args.folder / "over").exists()))
        dist.all_reduce(votes)
        is_over = bool(votes.max() > 0)
        step += 1
        print(f"rank {rank}: step {step}", flush=True)
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
