"""What one attempt of a run leaves in its folder makes room for the next."""

from pathlib import Path

# Of one attempt alone; checkpoints and settings are the run's.
OF_ATTEMPT = ("agents", "exits", "metrics", "workers", "stopped.json", "exit.json")


def put_aside(run_dir: Path, number: int) -> bool:
    """Move what attempt `number` (0 is the first) left into attempts/; false if it is done."""
    aside = run_dir / "attempts" / str(number)
    aside.parent.mkdir(parents=True, exist_ok=True)
    try:
        aside.mkdir()  # of several who would do it, the first does
    except FileExistsError:
        return False
    for name in OF_ATTEMPT:
        if (run_dir / name).exists():
            (run_dir / name).rename(aside / name)
    return True
