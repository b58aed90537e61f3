"""What Slurm says of a job to the processes in it, read once; nowhere else is SLURM_ read."""

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.errors import MusterError

# A scheduler's variables confuse what is submitted from inside one of its jobs.
FOREIGN = ("SLURM_", "SRUN_", "PMI_", "PMIX_", "SLURMD_", "SBATCH_CPU_BIND", "SBATCH_MEM_BIND")
# Its user's own, which no job sets: where Slurm is, who one is there, and what srun asks for.
OWN = frozenset(
    "SLURM_CONF SLURM_CONF_SERVER SLURM_CLUSTERS SLURM_JWT SLURM_ACCOUNT SLURM_PARTITION SLURM_QOS"
    " SLURM_RESERVATION SLURM_CONSTRAINT".split()
)
# What our scripts and flags decide; the variables of sbatch would win over them.
DECIDED = frozenset(
    "ARRAY_INX ERROR EXPORT IGNORE_PBS INPUT JOB_NAME NO_REQUEUE OPEN_MODE OUTPUT REQUEUE SIGNAL"
    " WAIT".split()
)
# sbatch's variable for an option, where it is not the option's own name.
VARIABLES = {"array": "ARRAY_INX", "mem": "MEM_PER_NODE", "time": "TIMELIMIT"}


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A job, as its batch script and each of its tasks see it."""

    job_id: str
    name: str  # of the job among all: 123, or 123_4 for part of an array
    attempt: int  # how often it was requeued
    num_nodes: int
    nodelist: str
    gpus_on_node: int
    cluster: str | None = None  # its name
    components: int = 1  # more than one in a heterogeneous job
    cpus_on_node: int | None = None  # of this node, the first

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Allocation":
        """The job of this process.

        Raises:
            MusterError: this is not part of a Slurm job.
        """
        if "SLURM_JOB_ID" not in env:
            raise MusterError("not in a Slurm job; submit with: sbatch slurm/multinode.sh")
        array = env.get("SLURM_ARRAY_JOB_ID")
        job_id = env["SLURM_JOB_ID"]
        gpus, cpus = env.get("SLURM_GPUS_ON_NODE", "0"), env.get("SLURM_CPUS_ON_NODE", "")
        return cls(
            job_id=job_id,
            name=f"{array}_{env.get('SLURM_ARRAY_TASK_ID', '0')}" if array else job_id,
            attempt=int(env.get("SLURM_RESTART_COUNT", "0")),
            num_nodes=int(env.get("SLURM_JOB_NUM_NODES", "1")),
            nodelist=env.get("SLURM_JOB_NODELIST", ""),
            gpus_on_node=int(gpus) if gpus.isdigit() else 0,
            cluster=env.get("SLURM_CLUSTER_NAME"),
            components=int(env.get("SLURM_HET_SIZE", "1")),
            cpus_on_node=int(cpus) if cpus.isdigit() else None,
        )


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of a step that has one on each node."""

    rank: int
    num_nodes: int  # of the step
    host: str
    leader_address: str  # where srun is, and with it whoever has started it

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Task":
        """The task that this process is.

        Raises:
            MusterError: it is none: srun did not start it.
        """
        needed = ("SLURM_PROCID", "SLURM_STEP_NUM_NODES", "SLURM_SRUN_COMM_HOST")
        missing = [name for name in needed if name not in env]
        if missing:
            raise MusterError(
                f"{', '.join(missing)} not set: agents in a Slurm job are started by srun; "
                "submit with: sbatch slurm/multinode.sh"
            )
        rank, num_nodes, address = (env[name] for name in needed)
        host = env.get("SLURMD_NODENAME", socket.gethostname())
        return cls(rank=int(rank), num_nodes=int(num_nodes), host=host, leader_address=address)


def scrubbed(env: Mapping[str, str], options: Iterable[str] = ()) -> dict[str, str]:
    """`env` without what a job we are in says of itself: it must not rule the next one.

    What a user sets for sbatch stays, but for what is decided here and for `options` (such as
    `gpus_per_node`) that were given: there it would win over them.
    """
    names = (VARIABLES.get(name, name.replace("-", "_").upper()) for name in options)
    decided = {f"SBATCH_{name}" for name in (*DECIDED, *names)}
    return {
        name: value
        for name, value in env.items()
        if name in OWN or not (name.startswith(FOREIGN) or name in decided)
    }
