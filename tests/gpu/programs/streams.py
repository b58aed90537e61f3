"""Train with `muster.sync` on the default stream and on another one, beside plain DDP.

Prints a line of JSON for each mode and compressor: how far its weights are from DDP's, and from its
own on the default stream. On CPUs there is no other stream, so both are the same.
"""

import json
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import muster
from tests.gpu.programs import arguments

STEPS, WIDTH, BATCH = 6, 512, 64
CASES: dict[str, dict[str, Any]] = {
    "all_reduce": {"mode": "all_reduce"},
    "gather_scatter": {"mode": "gather_scatter"},
    "ddp": {"mode": "ddp"},
    **{name: {"compress": name} for name in ("bf16", "fp16", "powersgd")},
}


def main() -> None:
    args = arguments.parser(__doc__).parse_args()
    with muster.init(device=args.device, backend=args.backend) as run:
        if not dist.is_initialized():  # a single process: DDP and its hook need a group of one
            backend = "nccl" if run.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        by_ddp = weights(run, DistributedDataParallel, is_default=True)
        for name, options in CASES.items():
            on, off = (
                weights(run, lambda model: muster.sync(model, **options), is_default)  # noqa: B023
                for is_default in (True, False)
            )
            if run.is_main:
                line = {"case": name, "from_ddp": apart(on, by_ddp), "off_stream": apart(on, off)}
                print(json.dumps(line), flush=True)


def weights(run: Any, wrapped: Any, is_default: bool) -> list[torch.Tensor]:
    """The trained weights of the same model on the same data."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 1)).to(run.device)
    stream: Any = nullcontext()
    if run.device.type == "cuda" and not is_default:
        other = torch.cuda.Stream(run.device)
        other.wait_stream(torch.cuda.current_stream(run.device))
        stream = torch.cuda.stream(other)
    generator = torch.Generator().manual_seed(run.rank)
    with stream:
        model = wrapped(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for _ in range(STEPS):
            inputs = torch.randn(BATCH, WIDTH, generator=generator).to(run.device)
            loss = (model(inputs) - inputs.mean(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [param.detach().cpu() for param in model.parameters()]


def apart(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """The largest difference, as a part of the largest weight."""
    most = max(float(param.abs().max()) for param in some)
    pairs = zip(some, others, strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs) / most


if __name__ == "__main__":
    main()
