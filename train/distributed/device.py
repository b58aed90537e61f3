"""One GPU for each worker where there are enough, else the CPU, alike on every rank."""

import sys
from collections.abc import Sequence

import torch

from muster.errors import MusterError

from .placement import WorkerInfo, assign_gpus
from .world import World


def visible_gpus(choice: str) -> list[str]:
    """The unique ids of the GPUs that this process sees; none if it is to use the CPU."""
    if choice == "cpu" or not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]


def choose_device(choice: str, world: World, workers: Sequence[WorkerInfo]) -> torch.device:
    """The device of this worker; all workers of a run use GPUs, or none does.

    Raises:
        MusterError: `choice` is cuda, and a worker has no GPU of its own.
    """
    chosen = None if choice == "cpu" else assign_gpus(workers)
    if chosen is not None:
        device = torch.device("cuda", chosen[world.rank])
        torch.cuda.set_device(device)
        return device
    own = [one for one in workers if one.machine == workers[world.rank].machine]
    shortage = f"{len(own)} workers on {world.host} have {len(set(own[0].gpus))} GPUs"
    if choice == "cuda":
        raise MusterError(f"--device cuda, but {shortage}; start fewer, or use --device cpu")
    if world.is_main and any(one.gpus for one in workers):
        print(f"{shortage}: all train on the CPU", file=sys.stderr, flush=True)
    return torch.device("cpu")


def choose_backend(choice: str, device: torch.device) -> str:
    """nccl between GPUs, gloo between CPUs.

    Raises:
        MusterError: nccl was asked for without a GPU.
    """
    if choice == "nccl" and device.type != "cuda":
        raise MusterError("--backend nccl needs a GPU for every worker; use --backend gloo")
    if choice != "auto":
        return choice
    return "nccl" if device.type == "cuda" else "gloo"
