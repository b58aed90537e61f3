"""One worker's run, from the meeting of all workers to the saved model."""

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from configs import plugins
from configs.cli import to_yaml
from configs.settings.train import TrainConfig
from muster import run_files
from muster.errors import UsageError
from muster.orderly_stop import StoppedCleanly
from muster.writing import write_json, write_text
from train.checkpoints.exchange import first_on_disk
from train.distributed import environment, rendezvous
from train.distributed.agreement import broadcast_result
from train.distributed.exit_guard import ExitGuard
from train.distributed.placement import fair_share
from train.distributed.rendezvous import Meeting, Peers
from train.distributed.world import World
from train.evaluation.task_metrics import TaskMetrics
from train.loop import build, export
from train.loop.trainer import Trainer
from train.model import precision
from train.records import summary
from train.records.sinks import Console, History, Sinks
from train.records.traffic import Meter
from train.sync.ranks import Ranks

SUMMED_UP = ("task", "sync", "batch_size", "split", "precision", "seed")  # in the summary


def train(config: TrainConfig, world: World, exit_guard: ExitGuard) -> None:
    """Train, and write the run's results: records, a summary, the model.

    Raises:
        StoppedCleanly: a signal ended the run early; `stopped.json` says how to continue it.
        TrainedButNotSaved: training is complete, but the last or the best checkpoint is not on a
            disk.
    """
    with prepared(config, world, exit_guard) as (trainer, run_dir):
        gc.enable()  # see train/worker.py
        ranks = trainer.ranks
        try:
            history = trainer.fit()
        except StoppedCleanly as stopped:
            if ranks.rank == 0:
                write_json(run_files.STOPPED.path(run_dir), stopped.facts(), forced=True)
            raise
        saves = config.save_model and config.epochs > 0
        model, is_first = trainer.state.model, ranks.rank == 0
        with trainer.grad_sync.full_parameters(model) if saves else nullcontext():
            if is_first:
                _write_results(trainer, history, run_dir, saves=saves)
        trainer.manager.require()


def _write_results(trainer: Trainer, history: History, run_dir: Path, *, saves: bool) -> None:
    """Write the summary and the model, and print the table of results."""
    config = trainer.config
    settings = {name: getattr(config, name) for name in SUMMED_UP}
    settings["world_size"] = trainer.ranks.world_size
    settings["train_samples"] = len(trainer.datasets.train)  # in one epoch
    totals = summary.summarise(settings, history, trainer.completed)
    write_json(run_files.SUMMARY.path(run_dir), totals)
    if saves:
        folder = run_files.MODEL.path(run_dir)
        export.save(trainer.task, trainer.state.model, folder, config, totals)
    trainer.console.table(summary.rows(totals, str(run_dir)))


@contextmanager
def join_workers(
    config: TrainConfig, world: World, exit_guard: ExitGuard, what: str = ""
) -> Iterator[tuple[Peers, Path]]:
    """Join all workers; yield them and their run folder; `what` names a run that does not train.

    Raises:
        MusterError: a worker, a file or a setting prevents it.
    """
    with rendezvous.meet(world, build.from_settings(Meeting, config)) as peers:
        run_dir = _open_run_folder(config, peers, what)
        exit_guard.record_in(run_dir)
        threads = fair_share(peers.world.rank, peers.workers)
        if peers.world.is_led:  # its agent knows about quotas, but not about other containers here
            threads = min(threads, torch.get_num_threads())
        torch.set_num_threads(config.threads or threads)
        if peers.leads_host:
            host = peers.world.host
            facts = environment.describe(host, peers.device)
            write_json(run_files.ENVIRONMENT.path(run_dir, host=host), facts)
        yield peers, run_dir


@contextmanager
def prepared(
    config: TrainConfig, world: World, exit_guard: ExitGuard, weights: Path | None = None
) -> Iterator[tuple[Trainer, Path]]:
    """Join all workers; yield a trainer that is ready for its first step, and its run folder.

    It begins with the weights in the folder `weights`, if one is given.

    Raises:
        MusterError: a worker, a file or a setting prevents it.
    """
    with join_workers(config, world, exit_guard) as (peers, run_dir), ExitStack() as closing:
        device, ranks = peers.device, Ranks(peers.world.rank, peers.world.world_size)
        task = plugins.load("train.tasks", config.task)(config)
        if config.new_head and not task.takes_new_head:
            raise UsageError(
                f"--new-head: --task {config.task} does not put a classification head on a --model"
            )
        peers.prepare(task.prepare, task.is_prepared)
        metrics = TaskMetrics(config.metrics, ranks) if config.metrics else None
        sinks = Sinks(run_dir, ranks.rank, profile=config.profile)
        closing.callback(sinks.close)
        host = "/".join(peers.workers[ranks.rank].machine_key)
        firsts = first_on_disk(config.checkpoint_dir or run_dir, ranks, host)
        meter = _meter(peers, ranks, run_dir)
        if meter is not None:
            closing.callback(meter.close)
        precision.set_float32_matmul(config.float32_matmul)
        console = Console(speaks=ranks.rank == 0 and not config.quiet)
        if advice := precision.advice(config.precision, device):
            console.line(advice)
        if config.new_head:
            console.line(
                f"--new-head: the model has a new head, initialised from seed {config.seed}"
            )
        folder = config.checkpoint_dir or run_files.CHECKPOINTS.path(run_dir)
        trainer = build.trainer(
            replace(config, run_id=run_dir.name), ranks, device, task, console, sinks,
            folder=folder, firsts=firsts, meter=meter, metrics=metrics, weights=weights,
        )  # fmt: skip
        closing.callback(trainer.manager.close)  # its last record goes to the sinks
        closing.callback(console.stop)
        trainer.resume()
        sinks.log_with(config.log_with or (), trainer.completed, "--log-with")
        try:
            yield trainer, run_dir
        except RuntimeError as error:
            error.add_note(f"after step {trainer.completed}")
            raise


def _open_run_folder(config: TrainConfig, peers: Peers, what: str) -> Path:
    """Return the run's folder on every rank; rank 0 creates it.

    A launcher has created it already and passes --redirect. If workers are started by hand, a
    folder that is not empty is refused unless --overwrite is given.

    Raises:
        UsageError: the folder is in use, or cannot be created.
    """
    world = peers.world

    def choose() -> str:
        run_id = config.run_id or world.run_id
        if run_id is None:
            size = str(world.world_size)
            run_id = run_files.new_run_id(config.logs_root, what or config.name, size, make=True)
        elif not config.redirect:
            named = replace(config, run_id=run_id)  # torchrun's name may not suit a folder
            run_files.claim(
                named.logs_root / run_id,
                named.inputs(),
                overwrite=named.overwrite,
                resumed=named.is_resumed,
            )
        run_dir = config.logs_root / run_id
        if not (settings := run_files.CONFIG.path(run_dir)).exists():
            write_text(settings, to_yaml(config))
        return run_id

    run_dir = config.logs_root / broadcast_result(world.rank, world.world_size, choose)
    run_dir.mkdir(parents=True, exist_ok=True)  # nodes need not share a file system
    return run_dir


def _meter(peers: Peers, ranks: Ranks, run_dir: Path) -> Meter | None:
    """Create a meter on the first rank of each host, if gradients go to other hosts by gloo."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    hosts = [worker.host for worker in peers.workers]
    if not peers.leads_host or len(set(hosts)) == 1 or interface is None:
        return None
    if dist.get_backend() != "gloo":  # nccl may use other paths than one network interface
        return None
    samples = run_files.TRAFFIC.path(run_dir, host=peers.world.host)
    ledger = ranks.ledger
    return Meter(ranks.rank, hosts, interface, ledger.gradients, ledger.control, samples)
