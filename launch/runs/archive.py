"""What an attempt of a run leaves in its folder is moved aside for the next one."""

from pathlib import Path

from muster import run_files


def archive_attempt(run_dir: Path, number: int) -> bool:
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
