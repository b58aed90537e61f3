"""The environment of the programs that we call, such as squeue or git; refuse missing programs.

Some variables change the answers of these programs: SQUEUE_PARTITION hides jobs, GIT_DIR names
another repository. Users set them for their own commands, so our calls do not get them. Variables
that locate a tool's configuration or identify the user are kept. So are sbatch's variables, since
they are documented as job settings.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from muster.errors import UsageError

SLURM_PREFIXES = ("SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SACCT_")
# The prefixes of the variables that hold a tool's settings.
SETTINGS = {
    **dict.fromkeys(("squeue", "sinfo", "scontrol", "scancel"), SLURM_PREFIXES),
    "git": ("GIT_",),
    "rsync": ("RSYNC_",),
}
STAYS = ("GIT_CONFIG",)  # they may name the files that git ignores
# The Debian package of a program, if its name differs.
PACKAGES = {"ssh": "openssh-client", "srun": "slurm-client"}


def require(tool: str, use: str) -> None:
    """Refuse if this machine lacks the program `tool`; `use` names what needs it.

    Raises:
        UsageError: it is not on PATH; the message explains how to install it.
    """
    if shutil.which(tool) is None:
        package = PACKAGES.get(tool, tool)
        raise UsageError(
            f"{use} needs {tool}, which is not installed on this machine"
            f"\ntip: install it, for example with: sudo apt-get install {package}"
        )


def environment_for(tool: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`env` without the user's settings for the program `tool`."""
    settings = SETTINGS.get(tool, ())
    return {
        name: value
        for name, value in env.items()
        if name.startswith(STAYS) or not name.startswith(settings)
    }
