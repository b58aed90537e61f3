"""One training process, started by torchrun (`torchrun ... -m train.worker`), mpirun, srun or hand.

By hand, on each node: `python -m train.worker --master-ip 10.10.1.1 --world-size 4 --rank 0`.
"""

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import NoReturn

from configs import cli
from configs.settings.train import ByHand, TrainConfig
from muster.errors import UsageError, refuse
from train.distributed.exit_guard import ExitGuard
from train.distributed.world import World

PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str] | None = None) -> int:
    return command(argv, "python -m train.worker", "Train one task as one of the workers.", _train)


def command(
    argv: Sequence[str] | None,
    prog: str,
    description: str,
    work: Callable[[TrainConfig, World, ExitGuard], None],
) -> int:
    """Do `work` as the worker that a command line describes; the exit code of its process."""
    words = sys.argv[1:] if argv is None else argv
    config, by_hand = cli.parse([TrainConfig, ByHand], words, prog=prog, description=description)
    return as_worker(config, by_hand, work)


def train(config: TrainConfig, by_hand: ByHand) -> int:
    """Train as the worker that flags or environment describe; the exit code of its process.

    Raises:
        UsageError: flags or environment do not say who this worker is.
    """
    return as_worker(config, by_hand, _train)


def as_worker(
    config: TrainConfig, by_hand: ByHand, work: Callable[[TrainConfig, World, ExitGuard], None]
) -> int:
    """Do `work` as the worker that flags or environment describe; the exit code of its process.

    Raises:
        UsageError: flags or environment do not say who this worker is.
    """
    silence_torch()
    world = World.find(os.environ, **asdict(by_hand))
    if world.agent_store:
        die_with_parent()
    with ExitGuard(world) as exit_guard:
        if config.redirect:  # so that also an end before all have met is recorded
            run_id = config.run_id or world.run_id
            if run_id is None:
                raise UsageError("--redirect is for launchers: it needs --run-id")
            exit_guard.run_dir = config.logs_root / run_id
        work(config, world, exit_guard)
    return exit_guard.code


def die_with_parent() -> None:
    """Have the kernel end this process when torchrun's agent dies, even by SIGKILL.

    Without it a worker whose agent is gone trains on, unnoticed. Workers of a launcher have done so
    already, as muster/worker/worker_main.py.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def silence_torch() -> None:
    """Have torch's C++ code print no warnings; it must not be imported yet.

    They repeat, with stack traces, what our own errors say of a lost peer; and DDP advises against
    looking for unused parameters wherever the first batch has used them all.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _train(config: TrainConfig, world: World, exit_guard: ExitGuard) -> None:
    refuse(config.world_problems(world.world_size))
    gc.disable()  # a fifth of the time of what is imported, up to the first step
    from train.loop import run  # here, since a wrong flag should be answered at once

    run.train(config.on(world.world_size), world, exit_guard)


def end_process(code: int) -> NoReturn:
    """End at once; threads of torch's are left no time to object."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a full disk, or nobody who reads it any more
            stream.flush()
    # All is written. The interpreter's own end would run C++ destructors, which abort the process
    # now and then where a peer has left first or a collective was cut short.
    os._exit(code)


if __name__ == "__main__":
    cli.run(lambda: end_process(main()))
