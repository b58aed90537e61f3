"""Whether another launcher has started this command, several times: each would start the whole run.

Variables of mpirun may be left over in a shell, so mpirun itself is looked for. In a Slurm job no
variable but that of a step tells how often it has started a command.
"""

from collections.abc import Iterator, Mapping

import psutil

from muster.errors import UsageError
from muster.rank_variables import NAMES, SRUN

# mpirun on its own machine, and its daemons on others.
OF_MPIRUN = frozenset(
    "mpirun mpiexec mpiexec.hydra orterun orted prterun prte prted hydra_pmi_proxy pmi_proxy "
    "hydra_bstrap_proxy".split()
)
TERMINAL = "SLURM_PTY_PORT"  # of `srun --pty`


def refuse_several(env: Mapping[str, str]) -> None:
    """Refuse to start a run in each task of a step, or in each rank of an mpirun.

    Raises:
        UsageError: this command is one of several, all of which are refused.
    """
    for launcher, variable in _several(env):
        raise UsageError(
            f"{launcher} has started this command {env[variable]} times ({variable}), and each "
            f"would start the whole run; leave out {launcher}: Muster starts the workers of all "
            f"nodes. For a run in each task: env -u {variable} ..."
        )


def _several(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What has started several, and the variable that has their number.

    The program of a run decides itself what it starts. A shell with a terminal is the one of its
    step that a user has: `srun --nodes=2 --pty bash`.
    """
    if "MUSTER_RUN_DIR" in env:
        return
    sizes = [size for _, size, *_ in NAMES.values() if env.get(size, "1") != "1"]
    if sizes and any(name in OF_MPIRUN for name in _ancestors()):
        yield "mpirun", sizes[0]
    rank, size, _ = SRUN
    is_shell = TERMINAL in env and env.get(rank) == "0"
    if "SLURM_JOB_ID" in env and env.get(size, "1") != "1" and not is_shell:
        yield "srun", size


def _ancestors() -> Iterator[str]:
    try:
        for process in psutil.Process().parents():
            yield process.name()
    except psutil.Error:  # it has ended, or is hidden
        return
