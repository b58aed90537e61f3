"""`logs/<run_id>/`: named so that names sort by time, and never taken over from another run."""

import time
from collections.abc import Iterator
from pathlib import Path

from configs.settings.train import TrainConfig
from muster import run_files
from muster.errors import UsageError, refuse

# Settings that name what a run reads.
READ = ("model", "tokenizer", "data_dir", "cache_dir")


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


def claim(run_dir: Path, config: TrainConfig) -> None:
    """Make `run_dir`; with --overwrite, clear it of an earlier run.

    Checkpoints stay where the new run is to go on from one.

    Raises:
        UsageError: it holds something and is not to be cleared, or the run would read of that,
            or it cannot be made.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        if any(run_dir.iterdir()) and not config.overwrite:
            raise _in_use(run_dir)
        refuse(_would_lose(run_dir, config))
        run_files.clear(run_dir, resumed=config.resume is not None)
    except OSError as error:
        raise _unusable(run_dir, error) from None


def claim_on_node(run_dir: Path, start: str, *, overwrite: bool, resumed: bool) -> None:
    """As `claim`, on a disk that the launcher does not see.

    Nodes that share that disk come at once: the first to leave a mark, with the name of this
    `start` of the run, does it for all. Workers start after every node was here.

    Raises:
        UsageError: another run's files are there and are not to be cleared; or it cannot be made.
    """
    mark = run_files.CLAIMED.path(run_dir, name=start)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return
        if not overwrite and any(path != mark for path in run_dir.iterdir()):
            raise _in_use(run_dir)
        run_files.clear(run_dir, resumed=resumed, but=mark)
    except OSError as error:
        raise _unusable(run_dir, error) from None


def _would_lose(run_dir: Path, config: TrainConfig) -> Iterator[str]:
    for name in READ:
        value = getattr(config, name)
        path = Path(value).absolute() if value is not None else None
        if (
            path is not None
            and path.exists()
            and run_files.clears(run_dir.absolute(), path, resumed=config.resume is not None)
        ):
            flag = "--" + name.replace("_", "-")
            yield f"--overwrite would remove {path}, which {flag} names; use another --run-id"


def _in_use(run_dir: Path) -> UsageError:
    return UsageError(f"run folder {run_dir} is not empty; use --overwrite or another --run-id")


def _unusable(run_dir: Path, error: OSError) -> UsageError:
    return UsageError(f"run folder {run_dir}: {error.strerror}; choose another --logs-dir")
