"""Other programs that we call, such as squeue or git: their environment, and one that is missing.

Variables of their own change what they answer: SQUEUE_PARTITION hides jobs, GIT_DIR names another
repository. They are a user's settings for that user's own commands, so they do not reach ours. What
stays says where a tool is configured or who the user is; and sbatch's variables, since those are
documented as settings of a job.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from muster.errors import UsageError

OF_SLURM = ("SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SACCT_")
# The beginnings of the variables that are a tool's settings.
SETTINGS = {
    **dict.fromkeys(("squeue", "sinfo", "scontrol", "scancel"), OF_SLURM),
    "git": ("GIT_",),
    "rsync": ("RSYNC_",),
}
STAYS = ("GIT_CONFIG",)  # which files git ignores may be said there
# The Debian package of a program, where it has another name.
PACKAGES = {"ssh": "openssh-client", "srun": "slurm-client"}


def require(tool: str, use: str) -> None:
    """Refuse what needs a program that this machine lacks; `use` says what that is.

    Raises:
        UsageError: there is no such program on PATH; the message says how to install it.
    """
    if shutil.which(tool) is None:
        package = PACKAGES.get(tool, tool)
        raise UsageError(
            f"this machine has no {tool}, which {use} needs; install it, as with: "
            f"sudo apt-get install {package}"
        )


def environment_for(tool: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`env` without the user's settings for `tool`, a program's name."""
    settings = SETTINGS.get(tool, ())
    return {
        name: value
        for name, value in env.items()
        if name.startswith(STAYS) or not name.startswith(settings)
    }
