"""GPUs where there are some, the CPU elsewhere, and the collectives that go with them."""

import socket

import torch

from configs.errors import MusterError
from train.world import World


def device_type(choice: str) -> str:
    """ "cuda" or "cpu".

    Raises:
        MusterError: a GPU was asked for and torch sees none.
    """
    if choice == "cuda" and not torch.cuda.is_available():
        raise MusterError(
            f"--device cuda, but torch sees no GPU on {socket.gethostname()}; use --device cpu"
        )
    return "cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu"


def device_for(kind: str, world: World) -> torch.device:
    """The device of this worker: with GPUs, the one that has its local rank.

    Raises:
        MusterError: there are fewer GPUs than workers on this node.
    """
    if kind == "cpu":
        return torch.device("cpu")
    if world.local_rank >= torch.cuda.device_count():
        raise MusterError(
            f"{world.host} has {torch.cuda.device_count()} GPUs for {world.local_world_size} "
            f"workers; use --nproc-per-node {torch.cuda.device_count()}, or --device cpu"
        )
    device = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(device)
    return device


def backend_for(choice: str, device_type: str) -> str:
    """nccl between GPUs, gloo between CPUs.

    Raises:
        MusterError: nccl was asked for without a GPU.
    """
    if choice == "nccl" and device_type != "cuda":
        raise MusterError("--backend nccl needs a GPU on every worker; use --backend gloo")
    if choice != "auto":
        return choice
    return "nccl" if device_type == "cuda" else "gloo"
