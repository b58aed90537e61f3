"""Nodes of somebody's job meet on the first of them, wherever in that job the run is led from."""

import subprocess
import sys
from pathlib import Path

from configs.plugins import REPOSITORY
from launch.spec import RUN_MODULE
from muster.errors import MusterError

PATIENCE_S = 120.0
MEET = ["--overlap", "--nodes=1", "--ntasks=1", "--quiet", "--job-name=muster-meet"]


def decide_on(host: str, run_dir: Path) -> None:
    """Have `host` write down its address and free ports for the agents of the next attempt.

    Raises:
        MusterError: it does not, in Slurm's or its own words.
    """
    command = [sys.executable, RUN_MODULE, "launch.slurm.batch", "meet", str(run_dir)]
    try:
        done = subprocess.run(
            ["srun", *MEET, f"--nodelist={host}", *command],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MusterError(
            f"{host}: no step began in {PATIENCE_S:.0f} s; see squeue --steps and sinfo"
        ) from None
    if done.returncode:
        why = done.stderr.strip() or f"exit code {done.returncode}"
        raise MusterError(f"{host}: {why.removeprefix('error: ')}")
