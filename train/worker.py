"""One training process, started by torchrun (`... -m train.worker`), mpirun, srun or by hand.

By hand, on each node: `python -m train.worker --master-ip 10.10.1.1 --world-size 4 --rank 0`.
"""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from configs import cli
from configs.settings.train import ByHand, TrainConfig
from muster import extras
from muster.errors import UsageError, refuse
from muster.worker.process import end_with_parent
from train.distributed.exit_guard import ExitGuard
from train.distributed.world import World

Work = Callable[[TrainConfig, World, ExitGuard], None]


def main(argv: Sequence[str] | None = None) -> int:
    about = (
        "Train one task, as one of the workers of a run. torchrun, mpirun or srun set the "
        "worker's rank; without them, set it with the last group of flags. --local_rank is the "
        "same as --local-rank."
    )
    return command(argv, "python -m train.worker", about, _train)


def command(argv: Sequence[str] | None, prog: str, description: str, work: Work) -> int:
    """Do `work` as the worker that a command line describes; return its process's exit code."""
    words = sys.argv[1:] if argv is None else argv
    config, by_hand = cli.parse([TrainConfig, ByHand], words, prog=prog, description=description)
    return as_worker(config, by_hand, work)


def train(config: TrainConfig, by_hand: ByHand) -> int:
    """Train as the worker in the flags or the environment; return the exit code of the process.

    Raises:
        UsageError: flags and environment do not determine which worker this is.
    """
    return as_worker(config, by_hand, _train)


def as_worker(config: TrainConfig, by_hand: ByHand, work: Work) -> int:
    """Do `work` as the worker in the flags or the environment; return the process's exit code.

    Raises:
        UsageError: flags and environment do not determine which worker this is.
    """
    silence_torch()
    if config.data_dir is None and (data := os.environ.get("MUSTER_DATA")):
        config = replace(config, data_dir=Path(data))  # where a launcher put it on this node
    world = World.find(os.environ, **asdict(by_hand))
    if world.agent_store:
        # Without its agent it would continue to train, unnoticed. A launcher's worker has called
        # this already.
        end_with_parent()
    with ExitGuard(world) as exit_guard:
        if config.redirect:  # so that an exit before all have met is also recorded
            run_id = config.run_id or world.run_id
            if run_id is None:
                raise UsageError("--redirect needs --run-id")
            exit_guard.record_in(config.logs_root / run_id)
        work(config, world, exit_guard)
    return exit_guard.code


def silence_torch() -> None:
    """Turn off the warnings of torch's C++ code; torch must not be imported yet.

    They repeat, with stack traces, what our own errors report about a lost peer, and DDP advises
    against looking for unused parameters whenever the first batch has used all of them.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _train(config: TrainConfig, world: World, exit_guard: ExitGuard) -> None:
    refuse(config.world_problems(world.world_size))
    if world.is_main:
        refuse(
            f"--log-with {name}: {extras.without_tracker(name)}"
            for name in config.log_with or ()
            if find_spec(name) is None
        )
    gc.disable()  # it takes a fifth of the import time; enabled again before the first step
    from train.loop import run  # here, so that a wrong flag is reported immediately

    run.train(config.on(world.world_size), world, exit_guard)


def end_process(code: int) -> NoReturn:
    """End the process immediately, so that torch's threads cannot interfere."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a full disk, or a reader that has gone
            stream.flush()
    # Everything is written. The interpreter's own end would run C++ destructors, which sometimes
    # abort the process if a peer has left first or a collective was interrupted.
    os._exit(code)


if __name__ == "__main__":
    cli.run(lambda: end_process(main()))
