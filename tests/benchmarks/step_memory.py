"""What a rank's tensors take at the end of the backward pass, beside torch's DDP as it comes.

    python -m tests.benchmarks.step_memory [--model FILE] [--ranks 4] [--modes zero1,fsdp,...]

Parameters, gradients, buckets and the optimizer's state, wherever they are kept: all bytes that
the C library's allocator has given out (mallinfo2, of all arenas, mapped blocks included) at the
end of the second step's backward pass, less those before the model was made. So it counts what C++
holds as well, such as DDP's buckets, and what else a step leaves behind. AdamW, fused, on float32.
DDP as it comes: `DistributedDataParallel(model)`, whose gradients are not views of its buckets.
Each mode runs by itself; the largest rank is shown.
"""

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from configs.plugins import REPOSITORY
from tests.benchmarks import places
from tests.benchmarks.results import aligned

MODEL = str(REPOSITORY / "configs" / "models" / "bert-base.json")
PLAIN = "torch's DDP"
MODES = (PLAIN, "ddp", "all_reduce", "zero1", "fsdp")
SAMPLES, TOKENS = 2, 16  # of a rank's step: activations are gone at the end of the backward pass
SETTLE_S = 0.2  # a thread of gloo's may still hold what it has sent
MIB = 2**20
Bytes = dict[str, list[int]]  # of each rank: `held` at the end of the backward pass, and `params`


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=MODEL, help="a configuration file of a BERT")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.modes, args.model, args.worker)
    found = {mode: measured(mode, args.ranks, args.model) for mode in args.modes.split(",")}
    print(aligned(table(found)))
    return 0


def measured(mode: str, ranks: int, model: str) -> Bytes:
    """One run."""
    flags = (f"--modes={mode}", f"--model={model}")
    found: Bytes = places.on_ranks("tests.benchmarks.step_memory", ranks, *flags)
    return found


def work(mode: str, model: str, output: Path) -> NoReturn:
    """As one rank: two steps up to the end of the second backward pass."""
    import torch
    import torch.distributed as dist
    from transformers import BertConfig, BertForSequenceClassification

    from train.sync import base
    from train.sync.base import SyncOptions
    from train.sync.ranks import Ranks

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    before = allocated()
    network = BertForSequenceClassification(BertConfig.from_json_file(model))
    params = sum(param.nbytes for param in network.parameters())
    sync = base.build("single" if mode == PLAIN else mode, Ranks(rank, world_size), SyncOptions())
    if mode == PLAIN:
        wrapped = torch.nn.parallel.DistributedDataParallel(network)
    else:
        wrapped = sync.wrap(network)
    optimizer = sync.prepare(torch.optim.AdamW(wrapped.parameters(), lr=1e-4, fused=True))
    held = 0
    for step in range(2):
        inputs = torch.randint(1, 1000, (SAMPLES, TOKENS))
        loss = wrapped(input_ids=inputs, labels=torch.zeros(SAMPLES, dtype=torch.long)).loss
        sync.backward(loss)
        del loss
        if step:
            time.sleep(SETTLE_S)
            held = allocated() - before
        sync.sync(wrapped, sync.used(wrapped))
        sync.clip(list(wrapped.parameters()), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        sync.updated(wrapped)
    every = torch.tensor([0] * world_size)
    every[rank] = held
    dist.all_reduce(every)
    if rank == 0:
        found: Bytes = {"held": every.tolist(), "params": [params]}
        output.write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # it keeps the store until all are there, and the rest is of no use


class Mallinfo(ctypes.Structure):
    """The C library's `struct mallinfo2`: bytes, but for the numbers of blocks."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


def allocated() -> int:
    """Bytes that the allocator has given out and not got back: in arenas, and mapped."""
    mallinfo2: Callable[[], Mallinfo] = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo  # type: ignore[attr-defined]
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


def table(found: dict[str, dict[str, list[int]]]) -> list[list[str]]:
    """A row per mode; the last two columns are of the model's parameters, and of DDP."""
    rows = [["mode", "MiB", "of the parameters", "of torch's DDP"]]
    for mode, figures in found.items():
        most = max(figures["held"])
        cells: Sequence[str] = (f"{most / MIB:,.0f}", f"{most / figures['params'][0]:.2f}")
        plain = max(found[PLAIN]["held"]) if PLAIN in found else 0
        rows.append([mode, *cells, f"{most / plain:.3f}" if plain else ""])
    return rows


if __name__ == "__main__":
    sys.exit(main())
