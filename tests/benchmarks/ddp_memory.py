"""What a rank of a plain script holds at most: DDP in its ways, `muster.sync`, and one process.

    python -m tests.benchmarks.ddp_memory [--rounds 3] [--python PYTHON]

Two ranks of gloo, in turns; a model of BERT-base's size (438 MB of gradients), AdamW, eight samples
of 128 tokens a rank, three steps. Prints the median over ranks and rounds of the largest resident
memory, libraries included, and what it is more than of one process. It needs torch alone:
`--python` measures another version of it. `lazy` is for torch 2.15 and newer.
"""

import argparse
import inspect
import os
import re
import resource
import subprocess
import sys
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import muster

VIEWS = {"gradient_as_bucket_view": True}
LAZY = {"lazy_bucket_allocation": True}
WAYS = {
    "alone": lambda model: model,
    "DDP": DistributedDataParallel,
    "DDP, views": lambda model: DistributedDataParallel(model, **VIEWS),
    "DDP, lazy": lambda model: DistributedDataParallel(model, **LAZY),
    "DDP, views, lazy": lambda model: DistributedDataParallel(model, **VIEWS, **LAZY),
    "muster.sync": muster.sync,
    "muster.sync, views": lambda model: muster.sync(model, **VIEWS),
}
STEPS, SAMPLES, TOKENS, WORDS, WIDTH = 3, 8, 128, 30522, 768


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--way", choices=WAYS, help="be a rank, and print its MiB")
    args = parser.parse_args()
    if args.way:
        options = inspect.signature(DistributedDataParallel).parameters
        if "lazy" not in args.way or "lazy_bucket_allocation" in options:
            print(f"MiB {rank(args.way)}")
        return
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way, own in found.items():
            own += measured(args.python, way)
    for way, own in found.items():
        if own:
            more = median(own) - median(found["alone"])
            print(f"{way:20} {median(own):7,.0f} MiB  {more:+7,.0f}  ({len(own)} ranks)")


def measured(python: str, way: str) -> list[float]:
    """MiB of each rank; none where this torch has no such option."""
    command = [python, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "1" if way == "alone" else "2", "-m", __spec__.name]
    # Large blocks go back to the system at once: what is compared is what is held.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**16), "OMP_NUM_THREADS": "1"}
    run = subprocess.run([*command, "--way", way], env=env, stdout=subprocess.PIPE, text=True)
    run.check_returncode()
    return [float(one) for one in re.findall(r"MiB ([\d.]+)", run.stdout)]


def rank(way: str) -> float:
    """Train; the largest memory in MiB."""
    dist.init_process_group("gloo")
    layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    model = WAYS[way](nn.Sequential(nn.Embedding(WORDS, WIDTH), encoder))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        tokens = torch.randint(WORDS, (SAMPLES, TOKENS))
        model(tokens).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    dist.barrier()
    dist.destroy_process_group()
    return largest


if __name__ == "__main__":
    main()
