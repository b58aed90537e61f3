"""The ranks of any program: all join, get a device each and one run folder, and leave together."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist

from muster.arguments import number, one_of
from muster.errors import UsageError, refuse

from ..distributed.rendezvous import Meeting, meet
from ..distributed.world import World

RUN_DIR, CHECKPOINTS = "MUSTER_RUN_DIR", "MUSTER_CHECKPOINTS"
IN_ENVIRONMENT = ("rank", "world_size", "local_rank", "local_world_size")


@dataclass(frozen=True, kw_only=True)
class RankOfRun(World):
    """This process as a rank of its run."""

    device: torch.device
    run_dir: Path  # for logs, records and checkpoints; used by this run only


@contextmanager
def init(
    *,
    device: str = "auto",
    backend: str = "auto",
    timeout_s: float = 1800.0,
    join_timeout_s: float = 300.0,
) -> Iterator[RankOfRun]:
    """Join the process group of all ranks, and return this process's rank in the run.

    It works under torchrun, Muster's launchers, srun and mpirun, by hand (see
    `muster.rank_variables`), and for a single process. Every rank must enter the block, and waits
    there for the others; all ranks leave it together. If a rank fails, the others are informed
    immediately. Under torchrun or `muster run`, so are ranks that wait for a rank that has left.
    Each rank gets one device, as `device`, and all ranks of a run get the same `run_dir`.

        >>> with muster.init(device="cpu") as run:
        ...     print(run.rank, run.world_size, run.device)
        0 1 cpu

    Args:
        device: "cuda", "cpu", or "auto": a GPU for each rank if all have one, else the CPU.
        backend: "nccl", "gloo", or "auto": nccl between GPUs.
        timeout_s: seconds that a rank may be late for a collective.
        join_timeout_s: seconds within which all ranks must have started.

    Raises:
        UsageError: an invalid argument, variables that contradict each other, or a process group
            that exists already.
        MusterError: an address, port or rank is missing after `join_timeout_s`, or a rank has no
            GPU for device="cuda".
    """
    problems = [
        *one_of("device", device, "auto", "cpu", "cuda"),
        *one_of("backend", backend, "auto", "gloo", "nccl"),
        *number("timeout_s", timeout_s, above=0),
        *number("join_timeout_s", join_timeout_s, above=0),
    ]
    refuse(problems, where="muster.init: ")
    if dist.is_available() and dist.is_initialized():
        raise UsageError(
            "muster.init: this process has already joined a process group"
            "\ntip: leave out init_process_group() or muster.init()"
        )
    world = World.find(os.environ)
    is_new_folder = False
    try:
        with meet(world, Meeting(device, backend, timeout_s, join_timeout_s)) as peers:
            met_world = peers.world
            if not (folder := os.environ.get(RUN_DIR)):
                is_new_folder = met_world.is_main
                if is_new_folder:
                    peers.store.set("run_dir", _new_run_folder(met_world.world_size))
                folder = peers.store.get("run_dir").decode()
            run_dir = Path(folder)
            variables = {
                RUN_DIR: str(run_dir),
                CHECKPOINTS: str(run_dir / "checkpoints"),
                **{name.upper(): str(getattr(met_world, name)) for name in IN_ENVIRONMENT},
            }
            added = {name: value for name, value in variables.items() if not os.environ.get(name)}
            os.environ.update(added)  # the rest of `muster`, and the program, read them there
            try:
                yield RankOfRun(**vars(met_world), device=peers.device, run_dir=run_dir)
            finally:
                for name in added:
                    del os.environ[name]
    finally:
        if is_new_folder:
            with suppress(OSError):  # not empty: what was written is kept
                run_dir.rmdir()


def _new_run_folder(world_size: int) -> str:
    """Create a folder that no other run has, for a run without a launcher."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(sys.argv[0]).stem or 'python'}-{world_size}"
    for suffix in count(1):
        run_dir = Path("logs", name if suffix == 1 else f"{name}-{suffix}").absolute()
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # a program that writes nothing needs none; others report it on writing
            pass
        break
    return str(run_dir)
