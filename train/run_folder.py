"""`logs/<run_id>/`: one folder per run, the same for all ranks, never one that is in use."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from configs.cli import to_yaml
from configs.errors import UsageError
from configs.schema import TrainConfig
from train.measure.records import rank_name

if TYPE_CHECKING:  # output is redirected before torch is imported
    from train.rendezvous import Peers


def new_run_id(config: TrainConfig, world_size: int) -> str:
    """A name that sorts by time and says what the run is."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{config.task}-{config.sync}-{world_size}"


def open_run_folder(config: TrainConfig, peers: "Peers") -> Path:
    """The run's folder, made by rank 0, on every rank.

    A launcher has made it already and says so by --redirect; by hand, a folder with anything in
    it is refused unless --overwrite is given.

    Raises:
        UsageError: the folder is in use, or cannot be made.
    """
    world = peers.world

    def choose() -> str:
        run_id = config.run_id or world.run_id or new_run_id(config, world.world_size)
        run_dir = config.logs_root / run_id
        if not config.redirect:
            claim(run_dir, overwrite=config.overwrite)
        if not (run_dir / "config.yaml").exists():
            (run_dir / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
        return run_id

    run_dir = config.logs_root / peers.agree("run_id", choose)
    run_dir.mkdir(parents=True, exist_ok=True)  # nodes need not share a file system
    return run_dir


def claim(run_dir: Path, *, overwrite: bool) -> None:
    """Make `run_dir`, empty of an earlier run's records.

    Raises:
        UsageError: it holds something and `overwrite` is not set, or it cannot be made.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        in_use = any(run_dir.iterdir())
    except OSError as error:
        raise UsageError(f"run folder {run_dir}: {error.strerror}; choose another --logs-dir") from None
    if in_use and not overwrite:
        raise UsageError(f"run folder {run_dir} is not empty; use --overwrite or another --run-id")
    for pattern in ("metrics/rank_*.jsonl", "exits/rank_*.json", "summary.json", "config.yaml"):
        for stale in run_dir.glob(pattern):
            stale.unlink()


def redirect_output(run_dir: Path, rank: int) -> None:
    """Send this process's stdout and stderr, whoever writes to them, to files of its own."""
    folder = run_dir / "workers"
    folder.mkdir(parents=True, exist_ok=True)
    for stream, ending in ((1, "out"), (2, "err")):
        path = folder / f"{rank_name(rank)}.{ending}"
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, stream)
        os.close(opened)
