"""Peers train on the same samples as we do, in our order, and print a JSON line for each step.

A peer reads torchrun's variables: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
"""

import argparse
import csv
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from train.batches.plan import BatchPlan

END_S = 1.0  # rank 0 hosts the store, which the others may still use when it is done
LABELS = ("entailment", "not_entailment")


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags of every peer; a peer may add its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with RTE's train.tsv")
    parser.add_argument("--model", required=True, help="folder with a model and its tokenizer")
    parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--schedule-steps", type=int, default=117, help="to a learning rate of 0")
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--share-gpu", action="store_true", help="all on GPU 0, through gloo")
    return parser


def join(args: argparse.Namespace) -> torch.device:
    """Join the process group; return the device to train on, a GPU or the CPU."""
    if args.device == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", 0 if args.share_gpu else int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    if args.share_gpu:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("nccl", device_id=device)
    return device


def ordered_samples(
    args: argparse.Namespace, tokenizer: Any, padding: Any = "max_length"
) -> list[dict[str, Any]]:
    """Return the tokenised samples of all steps in order; step k has samples [k*M, (k+1)*M)."""
    with (args.data_dir / "train.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    plan = BatchPlan(len(rows), args.batch_size, (1.0,), accumulation=1, seed=args.seed)
    steps = itertools.islice(plan.epoch(0, 0), args.steps)
    chosen = [rows[index] for step in steps for index in step.micro_batches[0].indices]
    encoded = tokenizer(
        [row["sentence1"] for row in chosen],
        [row["sentence2"] for row in chosen],
        truncation=True,
        max_length=128,
        padding=padding,
    )
    columns = {**encoded, "labels": [LABELS.index(row["label"]) for row in chosen]}
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def report_and_end(losses: list[float], seconds: list[float]) -> NoReturn:
    """Print each step's loss, the mean over all workers, and rank 0's seconds; then end."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mean = torch.tensor(losses, dtype=torch.float64, device=device)
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    if dist.get_rank() == 0:
        for step, (loss, step_s) in enumerate(zip(mean.tolist(), seconds, strict=True), start=1):
            print(json.dumps({"step": step, "loss": loss, "step_s": step_s}), flush=True)
    dist.barrier()
    if dist.get_rank() == 0:
        time.sleep(END_S)
    os._exit(0)  # the threads of two libraries that share a process group may wait for each other
