"""One of two ranks that share a device: their gradients, in the default stream and in another.

    streams_worker.py RANK FOLDER DEVICE

For each of `CASES` it writes how far the gradients of some steps in another stream are from those
in the default stream, and from the mean of what the ranks compute without any synchronisation. In
each backward pass the device is held up, so that what does not wait for it reads old numbers.
"""

import copy
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.sync.ddp.data_parallel import sync

CASES: dict[str, dict[str, Any]] = {
    "all_reduce": {},
    "gather_scatter": {"mode": "gather_scatter"},
    "whole embeddings": {"sparse_rows": False},
    "bf16": {"compress": "bf16"},
    "fp16": {"compress": "fp16"},
    "int8": {"compress": "int8"},
    "powersgd": {"compress": "powersgd"},
}
RANKS, STEPS, SIZE, LAYERS = 2, 3, 128, 4
CYCLES = 20_000_000  # of the device's clock: about a hundredth of a second
BUCKET_MB = 0.1  # a bucket for one or two of the weights


class HeldUp(torch.autograd.Function):
    """The identity; the device is held up in its backward pass."""

    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        return given.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if gradient.is_cuda:
            torch.cuda._sleep(CYCLES)
        return gradient


class Net(nn.Module):
    """Sums and products of single numbers, so that the same inputs give the same bits."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8192, SIZE)  # large enough to be sent by rows
        self.weights = nn.ParameterList(torch.randn(SIZE, SIZE) / 2 for _ in range(LAYERS))

    def forward(self, rows: Tensor) -> Tensor:
        numbers = self.words(rows)
        for weight in self.weights:
            numbers = HeldUp.apply(torch.tanh(numbers * weight))
        return numbers


def trained(model: nn.Module, rank: int, stream: Any) -> list[Tensor]:
    """The gradients of each step, read in the stream of the passes."""
    device = next(model.parameters()).device
    gradients = []
    with nullcontext() if stream is None else torch.cuda.stream(stream):
        for step in range(STEPS):
            rows = torch.arange(SIZE, device=device) * 3 + 1000 * rank + step  # each of them once
            model.zero_grad()
            model(rows).square().sum().backward()
            gradients += [param.grad.clone() for param in model.parameters()]
    return gradients


def mean(gradients: list[Tensor]) -> list[Tensor]:
    """Over the ranks, through the host."""
    means = []
    for gradient in gradients:
        total = gradient.cpu()
        dist.all_reduce(total)
        means.append(total / RANKS)
    return means


def off(numbers: list[Tensor], others: list[Tensor]) -> float:
    """The largest difference, as a share of the largest number."""
    shares = [
        ((number.cpu() - other.cpu()).abs().max() / other.abs().max().cpu()).item()
        for number, other in zip(numbers, others, strict=True)
    ]
    return max(shares)


def work(rank: int, folder: Path, device: torch.device) -> dict[str, dict[str, float]]:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=RANKS
    )
    torch.manual_seed(0)
    net = Net().to(device)
    exact = mean(trained(copy.deepcopy(net), rank, None))
    results = {}
    for name, options in CASES.items():
        kinds = {"default": None, "other": torch.cuda.Stream() if device.type == "cuda" else None}
        gradients = {}
        for kind, stream in kinds.items():
            model = sync(copy.deepcopy(net), bucket_mb=BUCKET_MB, **options)
            if device.type == "cuda":
                torch.cuda.synchronize()
            gradients[kind] = trained(model, rank, stream)
            if device.type == "cuda":
                torch.cuda.synchronize()
        results[name] = {
            "other stream": off(gradients["other"], gradients["default"]),
            "mean": off(gradients["default"], exact),
        }
    dist.destroy_process_group()
    return results


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's name may have no address
    this_rank = int(sys.argv[1])
    target = Path(sys.argv[2])
    written = json.dumps(work(this_rank, target, torch.device(sys.argv[3])))
    (target / f"rank_{this_rank}.json").write_text(written, encoding="utf-8")
