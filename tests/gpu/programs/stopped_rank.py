"""Some all_reduces, before one of which the last rank waits in `.cpu()` for a device that is busy.

On CPUs it sleeps there instead.
"""

import time

import torch
from torch import distributed as dist

import muster
from tests.gpu.programs import arguments

CYCLES = 2**37  # of a GPU's clock, for more than a minute
BUSY_S = 90


def main() -> None:
    parser = arguments.parser(__doc__)
    parser.add_argument("--steps", type=int, default=5, help="before the one that hangs")
    args = parser.parse_args()
    with muster.init(device=args.device, backend=args.backend) as run:
        total = torch.zeros(4, device=run.device)
        for step in range(1, args.steps + 2):
            if step > args.steps and run.rank == run.world_size - 1:
                keep_device_busy(run.device)
                wait_for_device(total)
            dist.all_reduce(total)
            muster.record(step, loss=total.sum())


def keep_device_busy(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda._sleep(CYCLES)


def wait_for_device(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        tensor.cpu()
    else:
        time.sleep(BUSY_S)


if __name__ == "__main__":
    main()
