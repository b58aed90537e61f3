"""Find torchrun's variables, whatever started this process: torchrun, srun, mpirun, or a user.

These are tried in this order; the first one found counts:

    torchrun, or by hand    RANK, WORLD_SIZE (MASTER_ADDR, MASTER_PORT)
    Open MPI's mpirun       OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, ...
    srun                    SLURM_PROCID, SLURM_STEP_NUM_TASKS, ...
    MPICH, Intel MPI        PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS

mpirun comes before srun: inside a Slurm job it starts its daemons with srun, and their SLURM_PROCID
is not a rank of the program. A salloc shell, a batch script and a step with one task are not ranks.
"""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Mapping

from muster.errors import UsageError
from muster.tool_environment import environment_for

DEFAULT_PORT = 29500  # torch's default
FIRST_PORT = 20000  # of jobs' ports, which are all below the ports that systems assign
PORT_COUNT = 10000
OPEN_MPI = "Open MPI's mpirun"
PMI = "mpirun (PMI)"
# RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE for each kind of MPI
NAMES = {
    OPEN_MPI: (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    PMI: ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}
REMEDIES = {
    OPEN_MPI: "mpirun -x MASTER_ADDR=NODE0 ...",
    PMI: "mpirun -genv MASTER_ADDR NODE0 ...",
}
SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
TERMINAL = "SLURM_PTY_PORT"  # of `srun --pty`
# Set by schedulers in their jobs, with the classes derived from `SchedulerJob`, if there are any.
JOBS = {
    "SLURM_JOB_ID": "launch.slurm.current_job:CurrentJob",
    "PBS_JOBID": None,
    "LSB_JOBID": None,
}
SCHEDULER = "MUSTER_SCHEDULER"  # such a class, set by the batch script of another scheduler
# A process with none of these was not started as one of several by srun or mpirun.
SIZES = frozenset(names[1] for names in (*NAMES.values(), SRUN))
# A process with one of these variables was started as a rank.
RANK_VARIABLES = (*(names[0] for names in NAMES.values()), "PMIX_RANK", "MV2_COMM_WORLD_RANK")


def torchrun_variables(env: Mapping[str, str]) -> dict[str, str]:
    """RANK, WORLD_SIZE and the variables that belong to them; empty for a single process.

    Raises:
        UsageError: there are several ranks, but the address of rank 0 is unknown; or this
            process was started as a rank, but its number or their count is unknown.
    """
    if "RANK" in env or "WORLD_SIZE" in env:
        return _complete(env, "MASTER_ADDR=NODE0 MASTER_PORT=29500")
    if NAMES[OPEN_MPI][1] in env:
        return _from_mpi(env, OPEN_MPI)
    of_srun = "SLURM_STEP_NUM_TASKS" in env
    if "PMI_SIZE" in env:  # from srun, or from an mpirun that has started its daemons with srun
        pairs = zip(NAMES[PMI][:2], SRUN[:2], strict=True)
        of_srun = of_srun and all(env.get(mpi) == env.get(slurm) for mpi, slurm in pairs)
    if of_srun:
        return _from_srun(env)
    if "PMI_SIZE" in env:
        return _from_mpi(env, PMI)
    variable = next((name for name in RANK_VARIABLES if name in env), None)
    if variable is None:
        return {}
    raise UsageError(
        f"{variable}={env[variable]} makes this process one of several, but no variable gives "
        "their number"
        "\ntip: set RANK, WORLD_SIZE and MASTER_ADDR in each process, or start them with "
        "torchrun, srun, or the mpirun of Open MPI or MPICH"
    )


def _from_mpi(env: Mapping[str, str], launcher: str) -> dict[str, str]:
    rank, size, local_rank, local_size = NAMES[launcher]
    if env[size] == "1":
        return {}
    variables = {"RANK": env.get(rank, ""), "WORLD_SIZE": env[size]}
    variables["LOCAL_RANK"] = env.get(local_rank, "0")
    variables["LOCAL_WORLD_SIZE"] = env.get(local_size, "1")
    job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid")
    if job:  # this mpirun's: two of them on one machine get different ports
        variables["MASTER_PORT"] = str(FIRST_PORT + zlib.crc32(job.encode()) % PORT_COUNT)
    return _complete({**variables, **_address(env)}, REMEDIES[launcher])


def _from_srun(env: Mapping[str, str]) -> dict[str, str]:
    if env["SLURM_STEP_NUM_TASKS"] == "1":
        return {}
    try:
        node = int(env["SLURM_NODEID"])
        job = int(env["SLURM_JOB_ID"]) * 7 + int(env.get("SLURM_STEP_ID", "0"))
        variables = {
            "RANK": env["SLURM_PROCID"],
            "WORLD_SIZE": env["SLURM_STEP_NUM_TASKS"],
            "LOCAL_RANK": env["SLURM_LOCALID"],
            "LOCAL_WORLD_SIZE": str(tasks_per_node(env["SLURM_STEP_TASKS_PER_NODE"])[node]),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": env["SLURM_STEP_NUM_NODES"],
            "MASTER_PORT": str(FIRST_PORT + job % PORT_COUNT),
        }
    except (KeyError, ValueError, IndexError) as error:
        raise UsageError(
            f"srun has started {env['SLURM_STEP_NUM_TASKS']} tasks (SLURM_STEP_NUM_TASKS), but "
            f"its variables do not show which of them this is ({error})"
            "\ntip: set RANK, WORLD_SIZE and MASTER_ADDR in each task"
        ) from None
    if "MASTER_ADDR" not in env and variables["LOCAL_WORLD_SIZE"] != variables["WORLD_SIZE"]:
        nodes = env.get("SLURM_STEP_NODELIST", env.get("SLURM_NODELIST", ""))
        variables["MASTER_ADDR"] = _first_host(nodes)
    return _complete({**variables, **_address(env)}, "MASTER_ADDR=NODE0 srun ...")


def _address(env: Mapping[str, str]) -> dict[str, str]:
    return {name: env[name] for name in ("MASTER_ADDR", "MASTER_PORT") if env.get(name)}


def _complete(env: Mapping[str, str], remedy: str) -> dict[str, str]:
    """All of torchrun's variables, given RANK, WORLD_SIZE and perhaps others."""
    rank = env.get("RANK", "")
    size = env.get("WORLD_SIZE", "")
    local = env.get("LOCAL_WORLD_SIZE", "1")
    if not (rank.isdecimal() and size.isdecimal()):
        raise UsageError(
            f"RANK is {rank or 'not set'} and WORLD_SIZE is {size or 'not set'}"
            "\ntip: set both to a number, or unset both"
        )
    if not (local.isdecimal() and int(local)):
        raise UsageError(f"LOCAL_WORLD_SIZE={local!r} must be a whole number, at least 1")
    variables = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": env.get("LOCAL_RANK", "0"),
        "LOCAL_WORLD_SIZE": local,
        # the same number of workers on every node, unless a variable says otherwise
        "GROUP_RANK": env.get("GROUP_RANK", str(int(rank) // int(local))),
        "GROUP_WORLD_SIZE": env.get("GROUP_WORLD_SIZE", str(-(-int(size) // int(local)))),
    }
    if local == size:
        variables["MASTER_ADDR"] = "127.0.0.1"
    variables["MASTER_PORT"] = str(DEFAULT_PORT)
    variables |= _address(env)
    if size != "1" and "MASTER_ADDR" not in variables:
        raise UsageError(
            f"rank {rank} of {size}: the address of rank 0 is not set"
            f"\ntip: give it in place of NODE0: {remedy}"
        )
    return variables


def tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's short form: `2(x3),1` is [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts


def _first_host(nodes: str) -> str:
    """Let Slurm itself expand a list of hosts: node[01-04] and more complex ones."""
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes],
            capture_output=True, text=True, timeout=30, check=True,
            env=environment_for("scontrol"),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"scontrol could not find the first host of {nodes!r} ({error})"
            "\ntip: set MASTER_ADDR to the address of rank 0"
        ) from None
    return done.stdout.split()[0]


def is_in_job(env: Mapping[str, str]) -> bool:
    """Whether a scheduler has given this process its machines."""
    return any(env.get(name) for name in (*JOBS, SCHEDULER))


def is_one_of_several_tasks(env: Mapping[str, str]) -> bool:
    """Whether srun has started this process several times.

    A shell with a terminal, as of `srun --nodes=2 --pty bash`, is the only task of its step that
    the user sees.
    """
    rank, size, _ = SRUN
    is_shell = TERMINAL in env and env.get(rank) == "0"
    return "SLURM_JOB_ID" in env and env.get(size, "1") != "1" and not is_shell
