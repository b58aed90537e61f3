"""Everything that one worker's run is made of, built here from its settings, once and in order."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from configs import plugins
from configs.settings.train import TrainConfig
from muster import run_files
from muster.errors import UsageError
from muster.writing import write_json
from train.batches.auto_split import probe
from train.batches.auto_split.splitter import Splitter
from train.batches.plan import BatchPlan
from train.checkpoints import resume
from train.checkpoints.manager import CheckpointManager
from train.distributed import environment, patience, rendezvous
from train.distributed.exit_guard import ExitGuard
from train.distributed.rendezvous import Peers
from train.distributed.world import World
from train.loop.run_plan import first_samples, plan_batches
from train.loop.shared_folder import open_run_folder
from train.loop.state import SETTINGS, STANDS_ON, TrainingState, mismatches
from train.loop.step import to_device
from train.loop.trainer import LoopOptions, Trainer
from train.model import precision, rng
from train.model.compilation import compile_layers
from train.model.optimizer import Learning, build_optimizer, build_schedule
from train.records.console import Console
from train.records.sinks import Sinks
from train.records.traffic import Meter
from train.sync import base, batchnorm
from train.sync.base import SyncOptions
from train.sync.ranks import Ranks
from train.tasks.base import Samples, Task

T = TypeVar("T")


@contextmanager
def joined(
    config: TrainConfig, world: World, exit_guard: ExitGuard, what: str = ""
) -> Iterator[tuple[Peers, Path]]:
    """The workers that have met, and their run folder; `what`: no training, as its name says.

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
        run_dir = exit_guard.run_dir = open_run_folder(config, peers, what)
        torch.set_num_threads(config.threads or peers.threads)
        if peers.leads_host:
            host = peers.world.host
            facts = environment.describe(host, peers.device)
            write_json(run_files.ENVIRONMENT.path(run_dir, host=host), facts)
        yield peers, run_dir


@contextmanager
def prepared(
    config: TrainConfig, world: World, exit_guard: ExitGuard
) -> Iterator[tuple[Trainer, Path]]:
    """A trainer whose workers have met, with its run folder, up to where it is to begin.

    Raises:
        MusterError: a worker, a file or a setting stands against it.
    """
    with joined(config, world, exit_guard) as (peers, run_dir):
        device, ranks = peers.device, ranks_of(peers.world)
        if config.precision == "fp16" and device.type == "cpu":
            raise UsageError("--precision fp16 needs a GPU; on a CPU use --precision bf16")
        task = plugins.load("train.tasks", config.task)(config)
        peers.prepare(task.prepare, task.is_prepared)
        console = Console(speaks=ranks.rank == 0 and not config.quiet)
        if advice := precision.advice(config.precision, device):
            console.line(advice)
        sinks = Sinks(run_dir, ranks.rank, tensorboard=config.tensorboard, profile=config.profile)
        writes = peers.sees_first("checkpoints", config.checkpoint_dir or run_dir)
        folder = config.checkpoint_dir or run_files.CHECKPOINTS.path(run_dir)
        checkpoints = checkpoints_of(config, folder, ranks, device, sinks, writes=writes)
        meter = _meter(peers, ranks, run_dir)
        try:
            trainer = build_trainer(
                config, ranks, device, task, console, sinks, checkpoints=checkpoints, meter=meter
            )
            go_on(trainer, config, folder, reads=writes)
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


def build_trainer(
    config: TrainConfig,
    ranks: Ranks,
    device: torch.device,
    task: Task,
    console: Console,
    sinks: Sinks,
    *,
    checkpoints: CheckpointManager | None = None,
    meter: Meter | None = None,
) -> Trainer:
    """All that a trainer is given, made alike on every rank: its collectives come in this order."""
    options, learning = of_settings(LoopOptions, config), of_settings(Learning, config)
    grad_sync = base.build(config.sync, ranks, of_settings(SyncOptions, config))
    datasets = first_samples(task.build_datasets(), config.train_samples, config.eval_samples)
    rng.seed(config.seed)  # the same weights on every rank
    model = task.build_model()
    if config.dropout is not None:
        precision.set_dropout(model, config.dropout)
    model = precision.place(model, config.precision, device)
    plan = plan_batches(config, ranks.world_size, device, task, datasets.train, model)
    patience.wait_for_all(ranks.world_size)  # whose data and models came from disks of unlike speed
    splitter = None
    if config.split == "auto":
        splitter, plan = _measured_split(
            config, ranks, device, task, datasets.train, model, plan, console, sinks
        )
    if config.batchnorm == "synced" and ranks.world_size > 1:
        model = batchnorm.convert(model, config.timeout_s)
    if config.compile:
        compile_layers(model, device)
    if meter is not None:
        meter.begin()
    wrapped = grad_sync.wrap(model)
    optimizer = grad_sync.prepare(build_optimizer(learning, wrapped))
    schedule = build_schedule(learning, optimizer, options.schedule_end(plan.steps_per_epoch))
    arithmetic = grad_sync.precision(precision.Precision(config.precision, device))
    resets = frozenset(part for part in STANDS_ON if getattr(config, f"reset_{part}"))
    state = TrainingState(model, optimizer, schedule, arithmetic, grad_sync, resets)
    trainer = Trainer(
        options, task, datasets, plan, state, wrapped, console, sinks,
        splitter=splitter, checkpoints=checkpoints, meter=meter,
        # a launcher that starts it again looks for its own
        recorded={"run_id": config.run_id, "settings": _recorded(config)},
    )  # fmt: skip
    rng.seed(rng.hash_seed(config.seed, ranks.rank))  # but not the same dropout
    return trainer


def go_on(trainer: Trainer, config: TrainConfig, folder: Path, *, reads: bool) -> None:
    """Have `trainer` go on from what --resume names, if it names anything.

    Raises:
        UsageError: there is none, or it is of a run with other settings.
    """
    if config.resume is None:
        return
    found = resume.load(
        config.resume,
        folder,
        trainer.ranks,
        trainer.device,
        reads=reads,
        problems_of=lambda state: mismatches(_recorded(config), trainer.state.resets, state),
        tell=trainer.console.line,
    )
    if found is not None:
        trainer.resume(*found)


def checkpoints_of(
    config: TrainConfig,
    folder: Path,
    ranks: Ranks,
    device: torch.device,
    sinks: Sinks,
    *,
    writes: bool,
) -> CheckpointManager:
    """What makes the run's checkpoints; `writes`: on this rank, too."""
    return CheckpointManager(
        folder,
        ranks,
        device,
        writes=writes,
        note=sinks.write,
        interval=config.checkpoint_interval(),
        keep_last=config.keep_last,
        keep_best=config.keep_best,
    )


def ranks_of(world: World) -> Ranks:
    """`world` as sync modes know it."""
    return Ranks(world.rank, world.world_size, world.local_rank, world.local_world_size)


def of_settings(kind: type[T], config: TrainConfig) -> T:
    """A `kind`, which is a dataclass, from the settings that its fields have the names of."""
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: getattr(config, name) for name in names})


def _recorded(config: TrainConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in SETTINGS}


def _measured_split(
    config: TrainConfig,
    ranks: Ranks,
    device: torch.device,
    task: Task,
    samples: Samples,
    model: nn.Module,
    plan: BatchPlan,
    console: Console,
    sinks: Sinks,
) -> tuple[Splitter, BatchPlan]:
    """Measure the ranks with the bare model, and plan after it."""
    splitter = Splitter(
        ranks, config.batch_size, config.sync, console.line, sinks.write,
        mean_tokens=plan.mean_length if plan.by_length else 0.0,
    )  # fmt: skip
    arithmetic = precision.Precision(config.precision, device)

    def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with arithmetic.autocast():
            return task.forward(model, batch).loss.sum()

    ranks.barrier(device)  # all at once, as in training
    found = probe.measure(
        model,
        build_optimizer(of_settings(Learning, config), model),
        lambda chosen: to_device(task.collate([samples[at] for at in chosen]), model, device),
        loss_of,
        size=len(samples),
        share=max(1, config.batch_size // ranks.world_size // config.accumulation),
        sharers=ranks.local_world_size,
        lengths=plan.lengths if plan.by_length else (),
    )
    patience.wait_for_all(ranks.world_size)
    return splitter, splitter.begin(found, model, device).applied(plan)


def _meter(peers: Peers, ranks: Ranks, run_dir: Path) -> Meter | None:
    """For the first rank of each host, where gradients go to other hosts through gloo."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    hosts = [one.host for one in peers.workers]
    if not peers.leads_host or len(set(hosts)) == 1 or interface is None:
        return None
    if dist.get_backend() != "gloo":  # nccl may take other ways than one interface
        return None
    samples = run_files.TRAFFIC.path(run_dir, host=peers.world.host)
    ledger = ranks.ledger
    return Meter(ranks.rank, hosts, interface, ledger.gradients, ledger.control, samples)
