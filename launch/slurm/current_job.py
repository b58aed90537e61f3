"""The job that this process is in, as the leader on its first node or in a shell of the job.

Slurm's variables tell a process which job it is in. Only Slurm knows whether the job still has its
nodes, because a shell of salloc continues after the job's end.
"""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path

from configs.settings.launch import LaunchConfig
from configs.settings.remote import SlurmConfig
from launch.deadlines import SLURM_IS_SILENT_S
from launch.nodes.scheduler import SchedulerJob
from launch.nodes.survey import last_line
from launch.slurm import controller, node_health
from launch.slurm.controller import UNKNOWN, WAITING_STATES, job_state, scrubbed
from launch.spec import Assignment
from muster.errors import MusterError
from muster.printable import signal_name
from muster.terminal import TIP, in_one_line
from muster.tool_environment import require
from muster.writing import tail

# `srun` needs these to find the job; all others would change the steps that it starts.
FOR_SRUN = ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_WORKING_CLUSTER", "SLURMD_NODENAME")
SRUN = (
    *("srun", "--ntasks-per-node=1", "--unbuffered"),
    "--overlap",  # another step may have the cores, such as the user's shell
    # A lost agent or node must not end the others: the leader decides that.
    *("--kill-on-bad-exit=0", "--wait=0", "--no-kill"),
)
LOG_BYTES = 65_536  # read from the end of srun's output
# srun's line about tasks that a signal has killed: `srun: error: node[0-1]: tasks 0-1: Killed`
KILLED = re.compile(r"srun: error: \S+: tasks? ([\d,-]+): (?!Exited |Out Of Memory)")
QUEUE_INSTEAD = "to queue a job instead: env -u SLURM_JOB_ID muster run ..."


@dataclass(frozen=True, kw_only=True)
class CurrentJob(SchedulerJob):
    """A running Slurm job that includes this process; its `name` may be an array part's: 123_4.

    Each process of `command` is a task of an srun step.
    """

    launcher = "slurm"
    shown_by = "sinfo and squeue --steps"
    index_variable = "SLURM_PROCID"
    node_variable = "SLURMD_NODENAME"
    origin_variable = "SLURM_SRUN_COMM_HOST"
    cpus_variable = "SLURM_CPUS_ON_NODE"
    rank_variables = ("SLURM_PROCID", "SLURM_LOCALID")

    nodelist: str = ""
    tasks_per_node: int | None = None  # if its --ntasks-per-node sets it
    components: int = 1  # more than one in a heterogeneous job

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "CurrentJob":
        """The job as Slurm's variables describe it."""
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
        return controller.host_names(self.nodelist, self.env)

    @property
    def folder(self) -> Path:
        return Path(self.env.get("SLURM_SUBMIT_DIR", ""))

    @cached_property
    def output(self) -> str:
        """The file for the output of its batch script, as squeue shows it; "" without an answer."""
        try:
            states = controller.job_states([self.job_id], self.env, SLURM_IS_SILENT_S)
        except MusterError:
            return ""
        return states[self.job_id].output

    def problems(self) -> Iterator[str]:
        if self.components > 1:
            yield (
                f"the job has {self.components} components, but a run uses only the nodes of the "
                "first: the others would be idle"
                "\ntip: submit one job with all nodes, without ':' or #SBATCH hetjob"
            )

    def command(self, hosts: Sequence[str], argv: Sequence[str], step: str) -> list[str]:
        require("srun", "a run inside a job")
        # srun of Slurm 22.05 and 23.02 does not take this number from the job:
        # https://github.com/reframe-hpc/reframe/issues/2655
        # If the variable is not set, a step has all cores of the job on each node.
        cores = self.env.get("SLURM_CPUS_PER_TASK")
        return [
            *(*SRUN, f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}"),
            *((f"--cpus-per-task={cores}",) if cores else ()),
            *(f"--nodelist={','.join(hosts)}", f"--job-name={step}", *argv),
        ]

    def killed_early(self, command: "subprocess.Popen[bytes]", log: Path, count: int) -> set[int]:
        """See the contract; if a signal has killed srun itself, all tasks are returned."""
        code = command.poll()  # asked first: after the end of srun, the log is complete
        if code is not None and code < 0:
            print(f"note: srun was killed by {signal_name(-code)}", file=sys.stderr)
            return {*range(count)}
        lines = in_one_line(tail(log, LOG_BYTES).decode(errors="replace")).splitlines()
        of_srun = [line for line in lines if line.startswith("srun: error: ")]
        killed = [match[1] for line in of_srun if (match := KILLED.match(line))]
        if len(killed) == len(of_srun) and (killed or code is None):
            return {task for text in killed for task in _numbers(text)}
        agents = [line for line in lines if not line.startswith(("srun: ", "slurmstepd: "))]
        errors = [line.removeprefix("srun: ").removeprefix("error: ") for line in agents or of_srun]
        raise MusterError("\n".join(errors) or f"srun ended with exit code {code}\ntip: see {log}")

    def silent_nodes(self, hosts: Sequence[str]) -> list[str]:
        return node_health.silent_nodes(hosts, self.env)

    def end_unix_s(self) -> float | None:
        return controller.end_unix_s(self.job_id, self.env)

    def is_running(self) -> bool:
        return job_state(self.name, self.env).name in ("RUNNING", UNKNOWN)

    def requeue(self, excluded: str | None) -> None:
        """See the contract; while Slurm does not answer, this tries again for two minutes."""
        if excluded is not None:
            # Slurm changes the nodes only of waiting jobs, but ends this process before the job is
            # waiting
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        requeue = ["scontrol", "requeue"]
        controller.retry_while_silent(
            lambda: controller.act_on(self.name, requeue, self.env), _print_error
        )
        if excluded is not None:
            nodes = ["scontrol", "update", f"ExcNodeList={excluded}", f"JobId={self.name}"]
            if (result := controller.ask(nodes, self.env)).returncode:
                _print_error(f"error: --exclude could not be changed: {last_line(result.stderr)}")

    @classmethod
    def worker_variables(cls, assignment: Assignment, env: Mapping[str, str]) -> dict[str, str]:
        """See the contract: the variables by which each worker is a task of one step.

        An agent is a task of its own step, or was started by a batch script.
        """
        if "SLURM_PROCID" not in env:
            return {}
        counts = assignment.counts
        num_nodes, num_tasks = str(len(counts)), str(sum(counts))
        groups = [(count, len([*equal])) for count, equal in groupby(counts)]
        per_node = ",".join(
            f"{count}(x{nodes})" if nodes > 1 else f"{count}" for count, nodes in groups
        )
        variables = {
            "SLURM_NTASKS": num_tasks,
            "SLURM_NPROCS": num_tasks,
            "SLURM_STEP_NUM_TASKS": num_tasks,
            "SLURM_NTASKS_PER_NODE": str(max(counts)),
            "SLURM_TASKS_PER_NODE": per_node,
            "SLURM_STEP_TASKS_PER_NODE": per_node,
            "SLURM_NNODES": num_nodes,  # an agent that replaces a lost one has a step of its own
            "SLURM_STEP_NUM_NODES": num_nodes,
            "SLURM_NODEID": str(assignment.index),
            "SLURM_GTIDS": ",".join(map(str, assignment.ranks)),
        }
        cores = env.get("SLURM_CPUS_PER_TASK", "")
        if cores.isdecimal() and "SLURM_STEP_ID" in env:  # a batch script has those of all tasks
            own = str(max(int(cores) // len(assignment.ranks), 1))
            variables["SLURM_CPUS_PER_TASK"] = own
            if tres := env.get("SLURM_TRES_PER_TASK"):  # newer srun refuses different values
                own_tres = re.sub(r"\b(cpu[:=])\d+", rf"\g<1>{own}", tres)
                variables["SLURM_TRES_PER_TASK"] = own_tres
        return variables

    def usage_line(self, nodes: int) -> str:
        """A line about a run that uses the first `nodes` of the job's nodes."""
        names = ", ".join(self.nodes[:nodes])
        share = "its" if nodes == self.num_nodes else f"{nodes} of its {self.num_nodes}"
        return f"in job {self.job_id}, on {share} nodes: {names}; {QUEUE_INSTEAD}"

    def notes(self, launch: LaunchConfig) -> Iterator[str]:
        """A line if the number of tasks per node in the job differs from that of workers."""
        workers = self.gpus or 1
        if launch.nproc_per_node is None and self.tasks_per_node not in (None, 1, workers):
            yield (
                f"note: job {self.job_id} has {self.tasks_per_node} tasks per node, but each node "
                f"gets {workers} worker{'s' * (workers > 1)}; for one worker per task, add "
                f"--nproc-per-node {self.tasks_per_node}"
            )

    def refused(self, launch: LaunchConfig, slurm: SlurmConfig) -> Iterator[str]:
        """A line for each setting that this job cannot fulfil, or that only a new job can have."""
        here = f"this is inside job {self.job_id}"
        given = [name for name, value in vars(slurm).items() if value and name != "wait"]
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            verb = "has" if len(given) == 1 else "have"
            yield f"{flags} {verb} no effect: {here}, which has its own{TIP}{QUEUE_INSTEAD}"
        wanted = len(launch.nproc(nodes=launch.most_nodes or self.num_nodes))
        if wanted > self.num_nodes:
            yield (
                f"--nodes {wanted}, but {here}, which has {self.num_nodes}"
                f"\ntip: use fewer nodes; {QUEUE_INSTEAD}"
            )
        if self.components > 1:
            yield (
                f"{here}, which has {self.components} components, but a run uses only the nodes of "
                f"the first{TIP}{QUEUE_INSTEAD}"
            )


def _numbers(text: str) -> Iterator[int]:
    """The numbers in Slurm's form of a list: 0, 1 and 3 for `0-1,3`."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _print_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def srun_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of srun: the job's variables, and nothing of a step in it.

    The variables of a step are left out, and so are the user's settings for other steps. If a step
    requested the memory or the GPUs of this process's own step, it would wait for that step's end.
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
        print(f"note: job {job_id}, in which this shell was started, is over", file=sys.stderr)
        return None
    result = controller.ask(["scontrol", "show", "job", "--details", "--oneliner", job_id], env)
    nodelist = re.search(r"\bNodeList=(\S+)", result.stdout)
    if nodelist is None or nodelist[1] == "(null)" or state.name in WAITING_STATES:
        raise MusterError(
            f"SLURM_JOB_ID is {job_id}, but that job has no nodes: {state.name.lower()} "
            f"{state.reason}{TIP}{QUEUE_INSTEAD}"
        )
    gpus = re.findall(r"\bGRES=gpu(?::[a-zA-Z][^:,\s(]*)?:(\d+)", result.stdout)
    job = CurrentJob.from_env(env)
    job = replace(job, nodelist=nodelist[1], gpus=min(map(int, gpus), default=0))
    return replace(job, num_nodes=len(job.nodes))
