"""Run programs through muster/worker/worker_main.py, and read how they ended."""

import json
import sys
from pathlib import Path

from muster.checkout import CHECKOUT
from tests.commands import call

WORKER_MAIN = CHECKOUT / "muster" / "worker" / "worker_main.py"


class Mute(Exception):
    """An exception without a text, as a program's own exceptions may be."""

    def __str__(self) -> str:
        raise ValueError("no text")


def run(project: Path, *words: str, through: bool = True, **env: str):
    shim = [str(WORKER_MAIN)] if through else []
    return call(sys.executable, *shim, *words, cwd=project, env=env)


def ended(run_dir: Path, rank: int = 0) -> dict:
    return json.loads((run_dir / "exits" / f"rank_{rank:05d}.json").read_text())
