"""One worker's training, from the meeting of all workers to the model on the disk."""

import gc
from contextlib import nullcontext
from pathlib import Path

from configs.settings.train import TrainConfig
from muster import run_files
from muster.writing import write_json
from train.distributed.exit_guard import ExitGuard
from train.distributed.stop_request import StoppedCleanly
from train.distributed.world import World
from train.loop import export
from train.loop.build import prepared
from train.loop.trainer import Trainer
from train.records import summary
from train.records.summary import History

SUMMED_UP = ("task", "sync", "batch_size", "split", "precision", "seed")  # settings


def train(config: TrainConfig, world: World, exit_guard: ExitGuard) -> None:
    """Train, and leave what a run leaves: records, a summary, the model.

    Raises:
        StoppedCleanly: a signal ended it early; `stopped.json` of the run folder says how to go on.
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
        with trainer.grad_sync.whole(trainer.state.model) if saves else nullcontext():
            if ranks.rank == 0:
                _leave(trainer, history, run_dir, saves=saves)


def _leave(trainer: Trainer, history: History, run_dir: Path, *, saves: bool) -> None:
    """Write the summary and the model, and print the table of results."""
    config = trainer.config
    settings = {name: getattr(config, name) for name in SUMMED_UP}
    settings |= {"world_size": trainer.ranks.world_size}
    settings |= {"train_samples": len(trainer.datasets.train)}  # of an epoch
    totals = summary.summarise(settings, history)
    write_json(run_files.SUMMARY.path(run_dir), totals)
    if saves:
        folder = run_files.MODEL.path(run_dir)
        export.save(trainer.task, trainer.state.model, folder, config, totals)
    trainer.console.table(summary.rows(totals, str(run_dir)))
