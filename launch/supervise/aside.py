"""What one attempt of a run, or an earlier run, leaves in its folder makes room for the next."""

from pathlib import Path

from configs import run_files
from configs.errors import UsageError
from configs.run_folder import claim_on_node
from launch.supervise.assignment import Assignment


def put_aside(run_dir: Path, number: int) -> bool:
    """Move what attempt `number` (0 is the first) left into attempts/; false if it is done."""
    aside = run_files.ATTEMPTS.path(run_dir, attempt=number)
    aside.parent.mkdir(parents=True, exist_ok=True)
    try:
        aside.mkdir()  # of several who would do it, the first does
    except FileExistsError:
        return False
    for name in sorted({one.top for one in run_files.FILES if one.scope == "attempt"}):
        if (run_dir / name).exists():
            (run_dir / name).rename(aside / name)
    return True


def make_room(told: Assignment) -> None:
    """On a node with a disk that is not the launcher's: of the last attempt, or of another run.

    Raises:
        UsageError: another run's files are there, and are not to be overwritten.
    """
    run_dir = Path(told.run_dir)
    if told.attempt:
        put_aside(run_dir, told.attempt - 1)
        return
    start = told.proof.rpartition("-")[2]
    try:
        claim_on_node(run_dir, start, overwrite=told.overwrite, resumed=told.resumed)
    except UsageError as error:
        raise UsageError(f"{told.name}: {error}") from None
