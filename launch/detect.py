"""Which launcher `--launcher auto` is: ssh for given hosts, Slurm where sbatch is, else local."""

import shutil
import subprocess

from configs.settings.launch import LaunchConfig

ANSWER_S = 2.0
# Slurm's commands are installed, but belong to no cluster: this is nobody's login node.
NO_CLUSTER = b"Could not establish a configuration source"


def launcher(config: LaunchConfig) -> str:
    """The name of a file of launch/launchers/."""
    if config.launcher != "auto":
        return config.launcher
    if config.hosts is not None:
        return "ssh"
    return "slurm" if is_login_node() else "local"


def is_login_node() -> bool:
    """Whether there is an sbatch here that belongs to a cluster.

    A controller that is slow, or does not answer, is no reason to train here.
    """
    if shutil.which("sbatch") is None:
        return False
    try:
        asked = subprocess.run(
            ["sinfo", "--noheader"], capture_output=True, check=False, timeout=ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return asked.returncode == 0 or NO_CLUSTER not in asked.stderr
