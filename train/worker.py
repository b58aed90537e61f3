"""One training process, started by torchrun (`torchrun ... -m train.worker`) or by hand.

By hand, on each node: `python -m train.worker --master-ip 10.10.1.1 --world-size 4 --rank 0`.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from configs import cli, plugins
from configs.errors import UsageError, refuse
from configs.schema import ByHand, TrainConfig
from train.exits import Ending, die_with_parent
from train.run_folder import open_run_folder, redirect_output
from train.stopping import StoppedCleanly
from train.world import World


def main(argv: Sequence[str] | None = None) -> int:
    config, by_hand = cli.parse(
        [TrainConfig, ByHand],
        sys.argv[1:] if argv is None else argv,
        prog="python -m train.worker",
        description="Train one task as one of the workers of a run.",
    )
    return train(config, by_hand)


def train(config: TrainConfig, by_hand: ByHand) -> int:
    """Train as the worker that flags or environment describe; the exit code of its process.

    Raises:
        UsageError: flags or environment do not say who this worker is.
    """
    return as_worker(config, by_hand, _train)


def as_worker(
    config: TrainConfig, by_hand: ByHand, work: Callable[[TrainConfig, World, Ending], None]
) -> int:
    """Do `work` as the worker that flags or environment describe; the exit code of its process.

    Raises:
        UsageError: flags or environment do not say who this worker is.
    """
    world = World.find(by_hand, os.environ)
    if world.agent_store or "MUSTER_LAUNCHER" in os.environ:
        die_with_parent()
    with Ending(world) as ending:
        if config.redirect:  # before the heavy imports, so that nothing they say is lost
            run_id = config.run_id or world.run_id
            if run_id is None:
                raise UsageError("--redirect is for launchers: it needs --run-id")
            ending.run_dir = config.logs_root / run_id
            redirect_output(ending.run_dir, world.rank)
        work(config, world, ending)
    return ending.code


def _train(config: TrainConfig, world: World, ending: Ending) -> None:
    # Its warnings, stack traces with them, only repeat what our own errors say of a lost peer.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    refuse(config.world_problems(world.world_size))
    import torch  # here, since a wrong flag should be answered at once

    from train import rendezvous
    from train.checkpoints import resume
    from train.checkpoints.keeper import Keeper
    from train.console import Console
    from train.measure import environment, summary
    from train.measure.records import write_json
    from train.measure.sinks import Sinks
    from train.trainer import Trainer

    with rendezvous.meet(world, config.device, config.backend, config.timeout_s) as peers:
        world, device = peers.world, peers.device
        run_dir = ending.run_dir = open_run_folder(config, peers)
        if config.precision == "fp16" and device.type == "cpu":
            raise UsageError("--precision fp16 needs a GPU; on a CPU use --precision bf16")
        torch.set_num_threads(config.threads or peers.threads)
        # As decided, for whatever builds on it: all ranks use GPUs, or none does.
        config = replace(config, device="cuda" if device.type == "cuda" else "cpu")
        if peers.leads_host:
            facts = environment.describe(world, device)
            write_json(run_dir / "environment" / f"{world.host}.json", facts)
        task = plugins.load("train.tasks", config.task)(config)
        peers.prepare(task.prepare, task.is_prepared)
        grad_sync = plugins.load("train.sync_modes", config.sync)(world, config)
        console = Console(speaks=world.is_main and not config.quiet)
        sinks = Sinks(run_dir, world.rank, tensorboard=config.tensorboard)
        folder = config.checkpoint_dir or run_dir / "checkpoints"
        writes = peers.sees_first("checkpoints", folder)
        keeper = Keeper(config, world, device, folder, sinks, writes=writes)
        try:
            trainer = Trainer(config, world, device, task, grad_sync, console, sinks, keeper)
            if config.resume is not None:
                found = resume.load(config, world, device, folder, console, reads=writes)
                if found is not None:
                    trainer.resume(*found)
            history = trainer.fit()
        except StoppedCleanly as stopped:
            if world.is_main:
                write_json(run_dir / "stopped.json", stopped.facts())
            raise
        finally:
            console.stop()
            keeper.close()
            sinks.close()
        if world.is_main:
            totals = summary.summarise(
                config,
                world.world_size,
                history.first_losses,
                history.steps,
                history.evaluations,
            )
            write_json(run_dir / "summary.json", totals)
            console.table("", summary.rows(totals, str(run_dir)))


def end_process(code: int) -> NoReturn:
    """End at once; threads of torch's are left no time to object."""
    sys.stdout.flush()
    sys.stderr.flush()
    # All is written. The interpreter's own end would run C++ destructors, which abort the process
    # now and then where a peer has left first or a collective was cut short.
    os._exit(code)


if __name__ == "__main__":
    cli.run(lambda: end_process(main()))
