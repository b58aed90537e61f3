"""What workers exchange when they meet, and what follows from it: neighbours, cores, GPUs.

Every rank computes everything from the same list, so that all ranks get the same result.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from muster.errors import MusterError
from muster.rank_variables import is_in_job

from .world import World


@dataclass(frozen=True)
class WorkerInfo:
    """The resources of one worker; a list of them is in rank order."""

    host: str
    machine: str  # containers and namespaces of one kernel share its cores
    cores: Sequence[int]  # that it may use
    gpus: Sequence[str]  # that it sees, by their unique ids

    @property
    def machine_key(self) -> tuple[str, str]:
        """Equal for workers that share a host name and a kernel, hence files and memory."""
        return self.machine, self.host


def worker_info(world: World, gpus: Sequence[str]) -> WorkerInfo:
    """The resources of this worker."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    can_ask = hasattr(os, "sched_getaffinity")
    return WorkerInfo(
        host=world.host,
        machine=boot.read_text().strip() if boot.exists() else world.host,
        cores=sorted(os.sched_getaffinity(0) if can_ask else range(os.cpu_count() or 1)),
        gpus=gpus,
    )


def fair_share(rank: int, workers: Sequence[WorkerInfo]) -> int:
    """The number of threads for `rank`: each core is shared by the workers that may use it."""
    neighbours = [worker for worker in workers if worker.machine == workers[rank].machine]
    shares = (
        1 / sum(core in worker.cores for worker in neighbours) for core in workers[rank].cores
    )
    return max(1, int(sum(shares) + 1e-9))  # a third and two thirds are one


def assign_gpus(workers: Sequence[WorkerInfo]) -> list[int] | None:
    """The GPU of each rank, by its index among those the rank sees; None if there are too few.

    In rank order each worker takes the first GPU that it sees and that no other has. So it does not
    matter whether all workers of a machine see all its GPUs, or each only its own.
    """
    taken: set[tuple[str, str]] = set()
    chosen = []
    for worker in workers:
        free = [gpu for gpu in worker.gpus if (worker.machine, gpu) not in taken]
        if not free:
            return None
        taken.add((worker.machine, free[0]))
        chosen.append(worker.gpus.index(free[0]))
    return chosen


def share_gpus(workers: Sequence[WorkerInfo]) -> list[int] | None:
    """The GPU of each rank if the workers of a machine share its GPUs; None if one sees none.

    NCCL refuses two ranks on one GPU; gloo, which copies gradients through the host, does not.
    """
    if not all(worker.gpus for worker in workers):
        return None
    places = [worker.machine for worker in workers]
    before = [places[:rank].count(place) for rank, place in enumerate(places)]
    return [number % len(worker.gpus) for number, worker in zip(before, workers, strict=True)]


def visible_gpus(choice: str) -> list[str]:
    """The unique ids of the GPUs that this process sees; none if it is to use the CPU.

    A slice of a GPU (MIG) has the id of the whole GPU; only CUDA_VISIBLE_DEVICES names the slice.
    """
    if choice == "cpu" or not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    named += [""] * count
    return [
        name if name.startswith("MIG-") else str(torch.cuda.get_device_properties(index).uuid)
        for index, name in enumerate(named[:count])
    ]


def choose_device(
    choice: str, world: World, workers: Sequence[WorkerInfo], backend: str = "auto"
) -> torch.device:
    """The device of this worker; all workers of a run use GPUs, or none does.

    Workers share GPUs only if `choice` is cuda and `backend` is gloo. With `auto`, too few
    GPUs are an error on several machines or in a job: one missing GPU would make all workers slow.

    Raises:
        MusterError: a worker has no GPU of its own, and `choice` is cuda; or it is auto, as above.
    """
    chosen = None if choice == "cpu" else assign_gpus(workers)
    if chosen is None and (choice, backend) == ("cuda", "gloo"):
        chosen = share_gpus(workers)
    if chosen is not None:
        device = torch.device("cuda", chosen[world.rank])
        torch.cuda.set_device(device)
        return device
    shortage = _shortage(workers)
    if choice == "cuda":
        raise MusterError(
            f"--device cuda, but {shortage}"
            "\ntip: start fewer workers, use --device cpu, or let workers share a GPU with "
            "--backend gloo"
        )
    if choice == "auto" and any(worker.gpus for worker in workers):
        if len({worker.machine for worker in workers}) > 1 or is_in_job(os.environ):
            raise MusterError(
                f"{shortage}"
                "\ntip: start one worker for each GPU, or use --device cpu to train on CPUs"
            )
        if world.is_main:
            print(f"{shortage}: all of them train on the CPU", file=sys.stderr, flush=True)
    return torch.device("cpu")


def _shortage(workers: Sequence[WorkerInfo]) -> str:
    """How many GPUs the first machine with too few of them has."""
    short = workers
    for machine in dict.fromkeys(worker.machine for worker in workers):
        short = [worker for worker in workers if worker.machine == machine]
        if assign_gpus(short) is None:
            break
    count = len({gpu for worker in short for gpu in worker.gpus})
    return f"{len(short)} workers on {short[0].host} have {count} GPUs"


def choose_backend(choice: str, device: torch.device) -> str:
    """nccl between GPUs, gloo between CPUs.

    Raises:
        MusterError: nccl was asked for without a GPU.
    """
    if choice == "nccl" and device.type != "cuda":
        raise MusterError("--backend nccl needs a GPU for every worker\ntip: use --backend gloo")
    if choice != "auto":
        return choice
    return "nccl" if device.type == "cuda" else "gloo"


def with_local_ranks(world: World, workers: Sequence[WorkerInfo]) -> World:
    """`world` with local ranks, for workers started by hand: a host counts as a node."""
    places = [worker.machine_key for worker in workers]
    own_place = places[world.rank]
    nodes = list(dict.fromkeys(places))
    before = places[: world.rank].count(own_place)
    size = places.count(own_place)
    world = replace(world, local_rank=before, local_world_size=size)
    return replace(world, node_rank=nodes.index(own_place), num_nodes=len(nodes))
