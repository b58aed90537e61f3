"""What a rank's tensors take at the end of the backward pass, beside torch's DDP as it comes.

    python -m tests.benchmarks.step_memory [--model FILE] [--ranks 4]

Parameters, gradients, buckets and the optimizer's state, wherever they are kept: all bytes that
the C library's allocator has given out (mallinfo2, of all arenas, mapped blocks included) at the
end of the second step's backward pass, less those before the model was made. So it counts what C++
holds as well, such as DDP's buckets, and what else a step leaves behind. AdamW, fused, on float32.
DDP as it comes: `DistributedDataParallel(model)`, whose gradients are not views of its buckets.
Each mode runs by itself; the largest rank is shown.
"""

import argparse
import ctypes
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import BertConfig, BertForSequenceClassification

from muster.checkout import CHECKOUT
from tests.train.workers import results_of
from train.report.pages.page import markdown_table
from train.sync import plugins
from train.sync.base import SyncOptions
from train.sync.ranks import Ranks

MODEL = str(CHECKOUT / "configs" / "models" / "bert-base.json")
PLAIN = "torch's DDP"
MODES = (PLAIN, "ddp", "all_reduce", "zero1", "fsdp")
SAMPLES, TOKENS = 2, 16  # of a rank's step: activations are gone at the end of the backward pass
SETTLE_S = 0.2  # a thread of gloo's may still hold what it has sent
LIMIT_S = 1800


class Held(NamedTuple):
    """Bytes, of the rank that holds most."""

    all: int
    params: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=MODEL, help="a configuration file of a BERT")
    parser.add_argument("--ranks", type=int, default=4)
    args = parser.parse_args()
    print(markdown_table(table({mode: measured(mode, args.ranks, args.model) for mode in MODES})))


def measured(mode: str, ranks: int, model: str) -> Held:
    """One run."""
    with tempfile.TemporaryDirectory() as folder:
        every = results_of(work, ranks, Path(folder), mode, model, timeout_s=LIMIT_S)
    return Held(*max(every))


def work(ranks: Ranks, mode: str, model: str) -> tuple[int, int]:
    """As one rank: what it holds at the end of the second backward pass, and its parameters."""
    torch.manual_seed(0)
    before = allocated()
    network = BertForSequenceClassification(BertConfig.from_json_file(model))
    params = sum(param.nbytes for param in network.parameters())
    sync = plugins.build("single" if mode == PLAIN else mode, ranks, SyncOptions())
    wrap = torch.nn.parallel.DistributedDataParallel if mode == PLAIN else sync.wrap
    wrapped = wrap(network)
    optimizer = sync.prepare(torch.optim.AdamW(wrapped.parameters(), lr=1e-4, fused=True))
    for _ in range(2):
        inputs = torch.randint(1, 1000, (SAMPLES, TOKENS))
        loss = wrapped(input_ids=inputs, labels=torch.zeros(SAMPLES, dtype=torch.long)).loss
        sync.backward(loss)
        del loss
        time.sleep(SETTLE_S)
        held = allocated() - before
        sync.sync(wrapped, sync.used(wrapped))
        sync.clip(list(wrapped.parameters()), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        sync.updated(wrapped)
    return held, params


class Mallinfo(ctypes.Structure):
    """The C library's `struct mallinfo2`: ten numbers, hblkhd is the fifth, uordblks the eighth."""

    _fields_ = [("numbers", ctypes.c_size_t * 10)]


def allocated() -> int:
    """Bytes that the allocator has given out and not got back: mapped, and in arenas."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo
    numbers = mallinfo2().numbers
    return int(numbers[4] + numbers[7])


def table(found: Mapping[str, Held]) -> list[dict[str, str]]:
    """A row per mode; the last two columns are of the model's parameters, and of DDP."""
    return [
        {
            "mode": mode,
            "MiB": f"{one.all / 2**20:,.0f}",
            "of the parameters": f"{one.all / one.params:.2f}",
            "of torch's DDP": f"{one.all / found[PLAIN].all:.3f}",
        }
        for mode, one in found.items()
    ]


if __name__ == "__main__":
    main()
