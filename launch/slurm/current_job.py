"""The job that this process is in, as the leader on its first node or in a shell of the job.

Slurm's variables tell a process its job. Only Slurm knows whether the job still has its nodes: a
shell of salloc stays after the job's end.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from configs.settings.launch import LaunchConfig
from configs.settings.remote import SlurmConfig
from launch.deadlines import SLURM_IS_SILENT_S
from launch.slurm import controller
from launch.slurm.controller import WAITING_STATES, job_state, scrubbed
from muster.errors import MusterError

# `srun` needs these to find the job; all others would change the steps that it starts.
FOR_SRUN = ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_WORKING_CLUSTER", "SLURMD_NODENAME")
QUEUE_INSTEAD = "to queue a job instead: env -u SLURM_JOB_ID muster run ..."


@dataclass(frozen=True, kw_only=True)
class CurrentJob:
    """A running job that includes this process."""

    job_id: str
    name: str  # of the whole job: 123, or 123_4 for part of an array
    num_nodes: int
    nodelist: str = ""
    gpus: int = 0  # of each node
    tasks_per_node: int | None = None  # if its --ntasks-per-node sets it
    attempt: int = 0  # how often it was requeued
    cluster: str | None = None  # its name
    components: int = 1  # more than one in a heterogeneous job

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "CurrentJob":
        """The job as Slurm's variables describe it.

        Raises:
            MusterError: this is not part of a Slurm job.
        """
        if "SLURM_JOB_ID" not in env:
            raise MusterError("not in a Slurm job; submit with: sbatch slurm/multinode.sh")
        array = env.get("SLURM_ARRAY_JOB_ID")
        job_id = env["SLURM_JOB_ID"]
        gpus = env.get("SLURM_GPUS_ON_NODE", "0")
        tasks = env.get("SLURM_NTASKS_PER_NODE", "")
        return cls(
            job_id=job_id,
            name=f"{array}_{env.get('SLURM_ARRAY_TASK_ID', '0')}" if array else job_id,
            num_nodes=int(env.get("SLURM_JOB_NUM_NODES", "1")),
            nodelist=env.get("SLURM_JOB_NODELIST", ""),
            gpus=int(gpus) if gpus.isdigit() else 0,
            tasks_per_node=int(tasks) if tasks.isdigit() else None,
            attempt=int(env.get("SLURM_RESTART_COUNT", "0")),
            cluster=env.get("SLURM_CLUSTER_NAME"),
            components=int(env.get("SLURM_HET_SIZE", "1")),
        )

    @cached_property
    def nodes(self) -> list[str]:
        """The names of its nodes, in Slurm's order."""
        return controller.host_names(self.nodelist, os.environ)

    @cached_property
    def output(self) -> str:
        """The file for what its batch script prints, as squeue shows it; "" without an answer."""
        try:
            states = controller.job_states([self.job_id], os.environ, SLURM_IS_SILENT_S)
        except MusterError:
            return ""
        return states[self.job_id].output

    def use(self, nodes: int) -> str:
        """A line about a run that uses the first `nodes` of the job's nodes."""
        names = ", ".join(self.nodes[:nodes])
        share = "its" if nodes == self.num_nodes else f"{nodes} of its {self.num_nodes}"
        return f"in job {self.job_id}, on {share} nodes: {names}; {QUEUE_INSTEAD}"

    def notes(self, launch: LaunchConfig) -> Iterator[str]:
        """A line if the job has another number of tasks per node than there will be workers."""
        workers = self.gpus or 1
        if launch.nproc_per_node is None and self.tasks_per_node not in (None, 1, workers):
            yield (
                f"note: job {self.job_id} has {self.tasks_per_node} tasks per node, but each node "
                f"gets {workers} worker{'s' * (workers > 1)}; for a worker per task, add "
                f"--nproc-per-node {self.tasks_per_node}"
            )

    def problems(self, launch: LaunchConfig, slurm: SlurmConfig) -> Iterator[str]:
        """A line for each setting that this job cannot fulfil, or that only a new job can have."""
        here = f"this is inside job {self.job_id}"
        given = [name for name, value in vars(slurm).items() if value and name != "wait"]
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            verb = "is" if len(given) == 1 else "are"
            yield f"{flags} {verb} for a new job, but {here}, which has its own; {QUEUE_INSTEAD}"
        wanted = len(launch.nproc(nodes=launch.most_nodes or self.num_nodes))
        if wanted > self.num_nodes:
            yield (
                f"--nodes {wanted}, but {here}, which has {self.num_nodes}; take fewer, or "
                f"{QUEUE_INSTEAD}"
            )
        if self.components > 1:
            yield (
                f"{here}, which has {self.components} components, but a run has the nodes of the "
                f"first alone; {QUEUE_INSTEAD}"
            )


def srun_environment(env: Mapping[str, str]) -> dict[str, str]:
    """srun's environment: the job's variables, and nothing of a step in it.

    The variables of a step are left out, and so are the user's settings for other steps. If a step
    requested the memory or the GPUs of this process's own step, it would wait for the end of that.
    """
    return {**scrubbed(env), **{name: env[name] for name in FOR_SRUN if name in env}}


def current_job(env: Mapping[str, str]) -> CurrentJob | None:
    """The job of this process, with Slurm's own facts; None without a job, or if it is over.

    Raises:
        MusterError: Slurm does not answer, or the job has no nodes yet.
    """
    job_id = env.get("SLURM_JOB_ID")
    if job_id is None:
        return None
    state = job_state(job_id, env)
    if state.is_over:
        print(f"note: job {job_id}, which this shell was of, is over", file=sys.stderr)
        return None
    result = controller.ask(["scontrol", "show", "job", "--details", "--oneliner", job_id], env)
    nodelist = re.search(r"\bNodeList=(\S+)", result.stdout)
    if nodelist is None or nodelist[1] == "(null)" or state.name in WAITING_STATES:
        raise MusterError(
            f"SLURM_JOB_ID is {job_id}, a job that has no nodes: {state.name.lower()} "
            f"{state.reason}; {QUEUE_INSTEAD}"
        )
    gpus = re.findall(r"\bGRES=gpu(?::[a-zA-Z][^:,\s(]*)?:(\d+)", result.stdout)
    job = CurrentJob.from_env(env)
    job = replace(job, nodelist=nodelist[1], gpus=min(map(int, gpus), default=0))
    return replace(job, num_nodes=len(job.nodes))
