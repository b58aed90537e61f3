"""Check that this machine can run a testbed, and run commands on it."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from muster.errors import MusterError

# The Debian package of each command.
PACKAGES = {
    "slurmd": ("slurmd",),
    "slurmctld": ("slurmctld",),
    "slurm-client": ("scontrol", "sinfo", "sbatch", "srun"),
    "munge": ("munged",),
    "openssh-server": ("sshd", "ssh", "ssh-keygen"),
    "iproute2": ("ip", "tc"),
}


def refuse_unfit_box() -> None:
    """Return if a testbed can be made.

    Raises:
        MusterError: this is not Linux, or not root, or commands are missing.
    """
    if sys.platform != "linux":
        raise MusterError(
            f"a testbed is made of Linux namespaces, but this is {sys.platform}; use a Linux host"
        )
    problems = []
    if os.geteuid() != 0:
        problems.append("a testbed is made by root, but this is another user; put sudo before it")
    missing = {
        package: [c for c in PACKAGES[package] if not shutil.which(c)] for package in PACKAGES
    }
    wanted = [package for package, commands in missing.items() if commands]
    if wanted:
        absent = ", ".join(command for commands in missing.values() for command in commands)
        problems.append(f"{absent} not found on PATH: sudo apt-get install {' '.join(wanted)}")
    if problems:
        raise MusterError("\n".join(problems))


def call(argv: Sequence[str], *, stdin: str | None = None) -> str:
    """The output of `argv`, with `stdin` as its input.

    Raises:
        MusterError: it cannot be started, or its exit code is not 0.
    """
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MusterError(f"{shlex.join(argv)}: {error}") from error
    if done.returncode:
        text = (done.stderr or done.stdout).strip().replace("\n", "; ")
        raise MusterError(f"{shlex.join(argv)} failed with {done.returncode}: {text}")
    return done.stdout
