"""Where this user's runs are, of whatever project: links in one folder, for `launch/jobs.py`."""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def note(run_dir: Path, env: Mapping[str, str] = os.environ) -> None:
    """Remember a run folder; where that cannot be written, the run is found by its folder alone."""
    digest = hashlib.sha256(str(run_dir).encode()).hexdigest()[:8]
    with suppress(OSError, RuntimeError):
        _folder(env).mkdir(parents=True, exist_ok=True)
        (_folder(env) / f"{run_dir.name}-{digest}").symlink_to(run_dir)


def run_folders(env: Mapping[str, str] = os.environ) -> list[Path]:
    """The run folders that are there now.

    A link to another stays: its disk may be away, or be another machine's that shares this home.
    """
    with suppress(OSError, RuntimeError):
        links = [link for link in _folder(env).iterdir() if link.is_symlink()]
        return [link.readlink() for link in links if os.path.isdir(link)]  # noqa: PTH112 (is_dir raises where it may not look)
    return []


def _folder(env: Mapping[str, str]) -> Path:
    """Raises RuntimeError where the user has no home, as in some containers."""
    state = env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "muster", "runs")
