"""`logs/<run_id>/`: named so that names sort by time, and never taken over from another run."""

import time
from pathlib import Path

from configs.errors import UsageError
from configs.schema import TrainConfig

# What a run writes and a later reader would mix up with the next run's.
OWN = (
    "config.yaml",
    "launch.json",
    "launcher.log",
    "job.json",
    "exit.json",
    "network.json",
    "collectives.json",
    "prediction.json",
    "summary.json",
    "agents/node_*",
    "environment/*.json",
    "exits/rank_*.json",
    "metrics/rank_*.jsonl",
    "tensorboard/events*",
    "traffic/*.csv",
    "profile/rank_*.json",
    "workers/rank_*.*",
)


def new_run_id(config: TrainConfig, size: str, what: str = "") -> str:
    """`20260821-143000-rte-ddp-4x1`, with a suffix if that one exists; `what`: no training."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{what or f'{config.task}-{config.sync}'}-{size}"
    taken = sum(1 for _ in config.logs_root.glob(f"{name}*")) if config.logs_root.is_dir() else 0
    return f"{name}-{taken + 1}" if taken else name


def claim_new(config: TrainConfig, size: str, what: str = "") -> str:
    """A new run id whose folder is made here, so that no run that starts at once takes it too.

    Raises:
        UsageError: the folder cannot be made.
    """
    while True:
        run_id = new_run_id(config, size, what)
        try:
            (config.logs_root / run_id).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _unusable(config.logs_root / run_id, error) from None
        return run_id


def claim(run_dir: Path, *, overwrite: bool) -> None:
    """Make `run_dir`, free of an earlier run's records.

    Raises:
        UsageError: it holds something and `overwrite` is not set, or it cannot be made.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        in_use = any(run_dir.iterdir())
    except OSError as error:
        raise _unusable(run_dir, error) from None
    if in_use and not overwrite:
        raise UsageError(f"run folder {run_dir} is not empty; use --overwrite or another --run-id")
    for pattern in OWN:
        for stale in run_dir.glob(pattern):
            stale.unlink()


def _unusable(run_dir: Path, error: OSError) -> UsageError:
    return UsageError(f"run folder {run_dir}: {error.strerror}; choose another --logs-dir")
