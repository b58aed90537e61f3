"""What one rank has read reaches all: nodes need not share a file system to resume."""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..sync.ranks import Ranks

DTYPES = {str(dtype): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)}  # fmt: skip
Files = dict[str, dict[str, Tensor]]


def gather_text(ranks: Ranks, text: str, device: torch.device) -> list[str]:
    """The text of every rank, on every rank."""
    data = text.encode()
    sizes = ranks.all_gather(torch.tensor([len(data)], device=device)).flatten().tolist()
    row = torch.zeros(max(1, *sizes), dtype=torch.uint8)
    if data:
        row[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    rows = ranks.all_gather(row.to(device)).cpu()
    return [bytes(own[:size].numpy()).decode() for own, size in zip(rows, sizes, strict=True)]


def share(
    ranks: Ranks, source: int, files: Files, state: dict[str, Any], device: torch.device
) -> tuple[Files, dict[str, Any]]:
    """The tensors and the state that the rank `source` has, on every rank."""
    if ranks.world_size == 1:
        return files, state
    mine = ""
    if ranks.rank == source:
        forms = {
            file: {name: [str(one.dtype), list(one.shape)] for name, one in tensors.items()}
            for file, tensors in files.items()
        }
        mine = json.dumps({"forms": forms, "state": state})
    reply = json.loads(gather_text(ranks, mine, device)[source])
    received: Files = {}
    for file, tensors in reply["forms"].items():
        received[file] = {}
        for name, (dtype, shape) in tensors.items():
            if ranks.rank == source:
                tensor = files[file][name].to(device)
            else:
                tensor = torch.empty(shape, dtype=DTYPES[dtype], device=device)
            if tensor.numel():
                # bytes: some backends know fewer types than checkpoints hold
                flat = tensor.contiguous().view(-1).view(torch.uint8)
                dist.broadcast(flat, src=source)
            received[file][name] = tensor.cpu()
    return received, reply["state"]
