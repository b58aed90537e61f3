"""One worker's training, from the meeting of all workers to the model on the disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from configs import plugins
from configs.settings.train import TrainConfig
from muster import run_files
from muster.errors import UsageError
from muster.writing import write_json
from train.checkpoints import resume
from train.checkpoints.manager import CheckpointManager
from train.distributed import environment, rendezvous
from train.distributed.exit_guard import ExitGuard
from train.distributed.rendezvous import Peers
from train.distributed.shared_folder import open_run_folder
from train.distributed.stop_request import StoppedCleanly
from train.distributed.world import World
from train.loop import export
from train.loop.trainer import Trainer
from train.model import precision
from train.records import summary
from train.records.console import Console
from train.records.sinks import Sinks
from train.records.traffic import Meter


def train(config: TrainConfig, world: World, exit_guard: ExitGuard) -> None:
    """Train, and leave what a run leaves: records, a summary, the model.

    Raises:
        StoppedCleanly: a signal ended it early; `stopped.json` of the run folder says how to go on.
    """
    with prepared(config, world, exit_guard) as (trainer, run_dir):
        try:
            history = trainer.fit()
        except StoppedCleanly as stopped:
            if trainer.world.is_main:
                write_json(run_files.STOPPED.path(run_dir), stopped.facts(), forced=True)
            raise
        if not trainer.world.is_main:
            return
        totals = summary.summarise(
            config,
            trainer.world.world_size,
            history.first_losses,
            history.totals,
            history.evaluations,
        )
        write_json(run_files.SUMMARY.path(run_dir), totals)
        table = summary.rows(totals, str(run_dir))
        if config.save_model and config.epochs:
            folder = run_files.MODEL.path(run_dir)
            export.save(trainer.task, trainer.parts.model, folder, config, totals)
        trainer.console.table("", table)


@contextmanager
def prepared(
    config: TrainConfig, world: World, exit_guard: ExitGuard
) -> Iterator[tuple[Trainer, Path]]:
    """A trainer whose workers have met, with its run folder, up to where it is to begin.

    Raises:
        MusterError: a worker, a file or a setting stands against it.
    """
    with rendezvous.meet(
        world,
        config.device,
        config.backend,
        config.timeout_s,
        join_timeout_s=config.join_timeout_s,
    ) as peers:
        world, device = peers.world, peers.device
        run_dir = exit_guard.run_dir = open_run_folder(config, peers)
        if config.precision == "fp16" and device.type == "cpu":
            raise UsageError("--precision fp16 needs a GPU; on a CPU use --precision bf16")
        torch.set_num_threads(config.threads or peers.threads)
        # As decided, for whatever builds on it: all ranks use GPUs, or none does.
        config = replace(config, device="cuda" if device.type == "cuda" else "cpu")
        if peers.leads_host:
            facts = environment.describe(world, device)
            write_json(run_files.ENVIRONMENT.path(run_dir, host=world.host), facts)
        task = plugins.load("train.tasks", config.task)(config)
        peers.prepare(task.prepare, task.is_prepared)
        grad_sync = plugins.load("train.sync.modes", config.sync)(world, config)
        console = Console(speaks=world.is_main and not config.quiet)
        if advice := precision.advice(config.precision, device):
            console.line(advice)
        sinks = Sinks(run_dir, world.rank, tensorboard=config.tensorboard, profile=config.profile)
        folder = config.checkpoint_dir or run_files.CHECKPOINTS.path(run_dir)
        writes = peers.sees_first("checkpoints", config.checkpoint_dir or run_dir)
        checkpoints = CheckpointManager(config, world, device, folder, sinks, writes=writes)
        meter = _meter(peers, run_dir)
        try:
            trainer = Trainer(
                config, world, device, task, grad_sync, console, sinks, checkpoints, meter
            )
            if config.resume is not None:
                found = resume.load(config, world, device, folder, console, reads=writes)
                if found is not None:
                    trainer.resume(*found)
            try:
                yield trainer, run_dir
            except RuntimeError as error:
                error.add_note(f"after step {trainer.at.step}")
                raise
        finally:
            console.stop()
            checkpoints.close()
            if meter is not None:
                meter.close()
            sinks.close()


def _meter(peers: Peers, run_dir: Path) -> Meter | None:
    """For the first rank of each host, where gradients go to other hosts through gloo."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    hosts = [one.host for one in peers.workers]
    if not peers.leads_host or len(set(hosts)) == 1 or interface is None:
        return None
    if dist.get_backend() != "gloo":  # nccl may take other ways than one interface
        return None
    world = peers.world
    samples = run_files.TRAFFIC.path(run_dir, host=world.host)
    return Meter(world.rank, hosts, interface, world.ledger, samples)
