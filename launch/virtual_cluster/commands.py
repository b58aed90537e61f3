"""Check that this machine can run a testbed, and run commands on it."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from launch.deadlines import TESTBED_COMMAND_S
from muster.errors import MusterError

# Debian's packages, and the commands that a testbed needs from each.
PACKAGES = {
    "slurmd": ("slurmd",),
    "slurmctld": ("slurmctld",),
    "slurm-client": ("scontrol", "sinfo", "sbatch", "srun"),
    "munge": ("munged",),
    "openssh-server": ("sshd", "ssh", "ssh-keygen"),
    "iproute2": ("ip", "tc"),
}


def require_supported_host() -> None:
    """Refuse to make a testbed on a machine that cannot run one.

    Raises:
        MusterError: this is not Linux, the user is not root, or commands are missing.
    """
    if sys.platform != "linux":
        raise MusterError(
            f"a testbed needs Linux namespaces, but this is {sys.platform}"
            "\ntip: use a Linux machine"
        )
    problems = []
    if os.geteuid() != 0:
        problems.append("permission denied: only root can make a testbed\ntip: run it with sudo")
    commands = [command for several in PACKAGES.values() for command in several]
    if absent := [command for command in commands if not shutil.which(command)]:
        packages = " ".join(name for name in PACKAGES if {*absent} & {*PACKAGES[name]})
        problems.append(
            f"{', '.join(absent)} not found on PATH\ntip: run: sudo apt-get install {packages}"
        )
    if problems:
        raise MusterError("\n".join(problems))


def call(
    argv: Sequence[str], *, stdin: str | None = None, timeout_s: float = TESTBED_COMMAND_S
) -> str:
    """Run `argv` with `stdin` as its input, and return its stdout.

    Raises:
        MusterError: the command cannot be started, or its exit code is not 0.
    """
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MusterError(f"{shlex.join(argv)}: {error}") from error
    if done.returncode:
        text = (done.stderr or done.stdout).strip().replace("\n", "; ")
        raise MusterError(f"{shlex.join(argv)} failed with exit code {done.returncode}: {text}")
    return done.stdout
