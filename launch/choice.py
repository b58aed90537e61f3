"""Which launcher `--launcher auto` is: ssh for given hosts, Slurm where it answers, else local."""

import shutil
import subprocess

from configs.launching import LaunchConfig

ANSWER_S = 2.0


def launcher(config: LaunchConfig) -> str:
    """The name of a file of launch/launchers/."""
    if config.launcher != "auto":
        return config.launcher
    if config.hosts is not None:
        return "ssh"
    return "slurm" if slurm_answers() else "local"


def slurm_answers() -> bool:
    """Whether there is an sbatch here, and a controller behind it."""
    if shutil.which("sbatch") is None or shutil.which("sinfo") is None:
        return False
    try:
        asked = subprocess.run(
            ["sinfo", "--noheader"], capture_output=True, check=False, timeout=ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
