"""Refuse another launcher as the program, such as `-- torchrun train.py`.

Each of Muster's workers would start the launcher, and with it a whole run of its own. These runs
would never connect to each other, and all of them would succeed. The same happens if another
launcher starts a Muster command several times. A shell may have left-over variables of mpirun, so
this module looks for an mpirun process. In a Slurm job, only the variables of a step show how often
it has started a command.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from configs.foreign_flags import LAUNCHERS, MPI
from launch.programs.python_choice import choose, workers_environment
from launch.programs.python_command import PYTHON
from muster.errors import UsageError, refuse, run
from muster.rank_variables import NAMES, SRUN, is_one_of_several_tasks

# Commands that run the command after their own flags.
WRAPPER_COMMANDS = frozenset(
    "env nohup nice time timeout stdbuf exec numactl taskset uv poetry pipenv conda mamba "
    "micromamba pixi hatch pdm apptainer singularity".split()
)
# mpirun's processes: mpirun itself, and its daemons on other machines.
MPIRUN_PROGRAMS = frozenset(
    (*MPI, "orted", "prte", "prted", "hydra_pmi_proxy", "pmi_proxy", "hydra_bstrap_proxy")
)


def problems(words: Sequence[str], wrap: Sequence[str] = ()) -> Iterator[str]:
    """A line if the program, or the command in front of each worker, is another launcher."""
    for option, command in (("", words), ("--wrap ", wrap)):
        if (name := launcher_in(command)) is not None:
            yield (
                f"{option}{name} starts workers, as Muster does: each of Muster's workers would "
                "start a run of its own"
                f"\ntip: leave it out and use {LAUNCHERS[name]}"
            )


def launcher_in(words: Sequence[str]) -> str | None:
    """The launcher that a command starts: directly, with Python, or after a command like `env`."""
    goes_on = bool(words) and Path(words[0]).name in WRAPPER_COMMANDS
    for at, word in enumerate(words):
        for launcher in LAUNCHERS:
            name, *more = launcher.split()
            file = f"{name.replace('.', '/')}.py" if "." in name else name  # of a module
            is_named = f"/{word}".endswith((f"/{name}", f"/{file}"))
            if is_named and [*words[at + 1 : at + 1 + len(more)]] == more:
                return launcher
        if word.endswith(".py") or word == "-c":
            break
        if not (goes_on or word.startswith("-") or PYTHON.fullmatch(Path(word).name)):
            break
    return None


def refuse_several(env: Mapping[str, str]) -> None:
    """Refuse to start a run in each task of a step, or in each rank of an mpirun.

    Raises:
        UsageError: this command is one of several, all of which are refused.
    """
    for launcher, variable in _several(env):
        raise UsageError(
            f"{launcher} has started this command {env[variable]} times ({variable}), and each "
            f"would start the whole run"
            f"\ntip: leave out {launcher}: Muster starts the workers on all nodes; to start one "
            f"run in each task: env -u {variable} ..."
        )


def _several(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The launcher that has started this command several times, and the variable with the count.

    A command that is started by a run's program is never refused.
    """
    if "MUSTER_RUN_DIR" in env:
        return
    sizes = [size for _, size, *_ in NAMES.values() if env.get(size, "1") != "1"]
    if sizes and any(name in MPIRUN_PROGRAMS for name in _ancestors()):
        yield "mpirun", sizes[0]
    if is_one_of_several_tasks(env):
        yield "srun", SRUN[1]


def _ancestors() -> Iterator[str]:
    try:
        for process in psutil.Process().parents():
            yield process.name()
    except psutil.Error:  # the process has ended, or is hidden
        return


def main() -> int:
    """Serve a script that starts the workers without Muster's leader.

    This refuses the program if it is another launcher. Otherwise it prints the Python that a leader
    would choose for the program.
    """
    refuse(problems(sys.argv[1:]))
    environment = workers_environment(Path.cwd(), {}, os.environ, is_over_ssh=False)
    print(choose("torchrun", environment).python or sys.executable)
    return 0


if __name__ == "__main__":
    run(main)
