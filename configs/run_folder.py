"""`logs/<run_id>/`: named so that names sort by time, and never taken over from another run."""

import time
from pathlib import Path

from configs.settings.fields import flag
from configs.settings.program import RunConfig
from muster import run_files
from muster.errors import UsageError, refuse


def new_run_id(run: RunConfig, what: str, size: str) -> str:
    """`20260821-143000-rte-ddp-4x1`, with a suffix if that one exists."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{what}-{size}"
    taken = sum(1 for _ in run.logs_root.glob(f"{name}*")) if run.logs_root.is_dir() else 0
    return f"{name}-{taken + 1}" if taken else name


def claim_new(run: RunConfig, what: str, size: str) -> str:
    """A new run id whose folder is made here, so that no run that starts at once takes it too.

    Raises:
        UsageError: the folder cannot be made.
    """
    while True:
        run_id = new_run_id(run, what, size)
        try:
            (run.logs_root / run_id).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _unusable(run.logs_root / run_id, error) from None
        return run_id


def id_of(run: RunConfig, what: str, size: str, *, make: bool) -> str:
    """The id of a run, which is made up where it has none; with `make`, its folder is made, too.

    Raises:
        UsageError: the folder is in use, or cannot be made.
    """
    if run.run_id is None:
        return claim_new(run, what, size) if make else new_run_id(run, what, size)
    if make:
        claim(run.logs_root / run.run_id, run)
    return run.run_id


def claim(run_dir: Path, run: RunConfig) -> None:
    """Make `run_dir`; with --overwrite, clear it of an earlier run.

    Checkpoints stay where the new run is to go on from one.

    Raises:
        UsageError: it holds something and is not to be cleared, or the run would read of that,
            or it cannot be made.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        if any(run_dir.iterdir()) and not run.overwrite:
            raise _in_use(run_dir)
        refuse(
            f"--overwrite would remove {path.absolute()}, which {flag(name)} names; use another "
            "--run-id"
            for name, path in run.inputs().items()
            if path.exists()
            and run_files.clears(run_dir.absolute(), path.absolute(), resumed=run.is_resumed)
        )
        run_files.clear(run_dir, resumed=run.is_resumed)
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


def _in_use(run_dir: Path) -> UsageError:
    return UsageError(f"run folder {run_dir} is not empty; use --overwrite or another --run-id")


def _unusable(run_dir: Path, error: OSError) -> UsageError:
    return UsageError(f"run folder {run_dir}: {error.strerror}; choose another --logs-dir")
