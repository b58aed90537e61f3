"""torchrun's variables, from whatever started this process: torchrun, srun, mpirun, or a hand.

Looked for in this order; the first that is there counts:

torchrun, or by hand    RANK, WORLD_SIZE (MASTER_ADDR, MASTER_PORT)
srun                    SLURM_PROCID, SLURM_STEP_NUM_TASKS, ...
Open MPI's mpirun       OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, ...
MPICH, Intel MPI        PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from muster.errors import UsageError

DEFAULT_PORT = 29500  # torch's
FIRST_PORT, PORTS = 20000, 10000  # of Slurm's jobs, below those that systems hand out
# RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE of each way of MPI
MPI = (
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def torchrun_variables(env: Mapping[str, str]) -> dict[str, str]:
    """RANK, WORLD_SIZE and all that belongs to them; empty: this process is alone.

    Raises:
        UsageError: there are several ranks, and nothing says where rank 0 is.
    """
    if "RANK" in env or "WORLD_SIZE" in env:
        return _by_hand(env)
    if int(env.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return _of_srun(env)
    for rank, size, local_rank, local_size in MPI:
        if int(env.get(size, "1")) > 1:
            found = {"RANK": env[rank], "WORLD_SIZE": env[size]}
            found["LOCAL_RANK"] = env.get(local_rank, "0")
            found["LOCAL_WORLD_SIZE"] = env.get(local_size, "1")
            return _by_hand({**env, **found}, "mpirun -x MASTER_ADDR=NODE0 -x MASTER_PORT=29500")
    return {}


def _by_hand(
    env: Mapping[str, str], remedy: str = "MASTER_ADDR=NODE0 MASTER_PORT=29500"
) -> dict[str, str]:
    rank, size = env.get("RANK", ""), env.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and size.isdecimal()):
        raise UsageError(
            f"RANK is {rank or 'not set'} and WORLD_SIZE is {size or 'not set'}; set both to a "
            "number, or neither"
        )
    local = env.get("LOCAL_WORLD_SIZE", "1")
    found = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": env.get("LOCAL_RANK", "0"),
        "LOCAL_WORLD_SIZE": local,
        # as many on every node, where nothing says otherwise
        "GROUP_RANK": env.get("GROUP_RANK", str(int(rank) // int(local))),
        "GROUP_WORLD_SIZE": env.get("GROUP_WORLD_SIZE", str(-(-int(size) // int(local)))),
    }
    if local == size:
        found["MASTER_ADDR"] = "127.0.0.1"
    found["MASTER_PORT"] = str(DEFAULT_PORT)
    found.update({name: env[name] for name in ("MASTER_ADDR", "MASTER_PORT") if env.get(name)})
    if size != "1" and "MASTER_ADDR" not in found:
        raise UsageError(
            f"WORLD_SIZE is {size}, but nothing says where rank 0 is; give its address, and a "
            f"port that is free there: {remedy}"
        )
    return found


def _of_srun(env: Mapping[str, str]) -> dict[str, str]:
    node = int(env["SLURM_NODEID"])
    nodes = env.get("SLURM_STEP_NODELIST", env.get("SLURM_NODELIST", ""))
    job = int(env["SLURM_JOB_ID"]) * 7 + int(env.get("SLURM_STEP_ID", "0"))
    return {
        "RANK": env["SLURM_PROCID"],
        "WORLD_SIZE": env["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": env["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(tasks_per_node(env["SLURM_STEP_TASKS_PER_NODE"])[node]),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": env["SLURM_STEP_NUM_NODES"],
        "MASTER_ADDR": env.get("MASTER_ADDR") or _first_host(nodes),
        "MASTER_PORT": env.get("MASTER_PORT") or str(FIRST_PORT + job % PORTS),
    }


def tasks_per_node(text: str) -> list[int]:
    """`2(x3),1`, as Slurm writes it, is [2, 2, 2, 1]."""
    found: list[int] = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        found += [int(count)] * int(times.rstrip(")") or 1)
    return found


def _first_host(nodes: str) -> str:
    """Slurm itself takes a list of hosts apart: node[01-04] and worse."""
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes],
            capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"scontrol does not say which host is the first of {nodes!r} ({error}); give "
            "MASTER_ADDR, the address of rank 0"
        ) from None
    return done.stdout.split()[0]
