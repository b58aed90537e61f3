"""Call Slurm's commands, and read what they report about the cluster and its jobs.

If the controller does not answer, nothing is known about a job. Nothing here needs accounting
(sacct), which many small clusters do not run.
"""

import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import NamedTuple

from configs.settings import sbatch_options
from launch.deadlines import (
    SLURM_ANSWERS_S,
    SLURM_ASKED_AGAIN_S,
    SLURM_CLUSTER_ANSWERS_S,
    SLURM_IS_SILENT_S,
)
from launch.nodes.survey import last_line
from muster.errors import MusterError, UsageError
from muster.tool_environment import environment_for

# The variables of a job, which confuse commands that are run inside it.
JOB_PREFIXES = ("SLURM_", "SRUN_", "PMI_", "PMIX_", "SLURMD_", "SBATCH_CPU_BIND", "SBATCH_MEM_BIND")
# The user's own settings, which no job sets: where Slurm is, the user's identity, srun's options.
USER_VARIABLES = frozenset(
    "SLURM_CONF SLURM_CONF_SERVER SLURM_CLUSTERS SLURM_JWT SLURM_ACCOUNT SLURM_PARTITION SLURM_QOS"
    " SLURM_RESERVATION SLURM_CONSTRAINT".split()
)
ENDED_STATES = frozenset(
    "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL OUT_OF_MEMORY PREEMPTED BOOT_FAIL DEADLINE"
    " REVOKED".split()
)
GRES_GPUS = re.compile(r"\bgpu(?::[a-zA-Z][^:,\s(]*)?:(\d+)")  # in Slurm's text about a node
NODE_FORMAT = "%P|%l|%c|%m|%T|%G"  # for sinfo: the fields of a PartitionNode
# Slurm's commands are installed but belong to no cluster, so this is not a login node.
NO_CLUSTER = "Could not establish a configuration source"
# The prefixes of sinfo's states in which a node gets no jobs.
NODE_IS_OUT = ("down", "drain", "fail", "error", "inval", "maint", "reboot", "unk")
WAITING_STATES = frozenset("PENDING REQUEUED REQUEUE_HOLD REQUEUE_FED SPECIAL_EXIT".split())
# Two states that Slurm itself does not have. FORGOTTEN: Slurm no longer has a record of the job.
# UNKNOWN: Slurm does not answer.
FORGOTTEN = "FORGOTTEN"
UNKNOWN = "UNKNOWN"
# For squeue; each field is as wide as its value. A part of an array has its own number (JobID) in
# addition to its name in the array (JobArrayID). The output path is last, since it may have a "|".
SQUEUE_FIELDS = "JobID JobArrayID State StartTime EndTime Reason RestartCnt STDOUT".split()
SQUEUE_FORMAT = ":.|,".join(SQUEUE_FIELDS) + ":."


class SlurmNotResponding(MusterError):
    """Slurm does not answer, so nothing is known about it or its jobs; asking again may help."""


def scrubbed(env: Mapping[str, str], options: Iterable[str] = ()) -> dict[str, str]:
    """`env` without the variables of a surrounding job, which must not affect the next job.

    The user's variables for sbatch are kept, except those for options that Muster sets itself, and
    for `options` (such as `gpus_per_node`), which the user gave as flags. The variables would
    override both.
    """
    given = {name.replace("_", "-") for name in options}
    given |= {name for group in sbatch_options.ALTERNATIVES if group & given for name in group}
    overriding = {*sbatch_options.UNUSED, *map(sbatch_options.variable, given)}
    return {
        name: value
        for name, value in env.items()
        if name in USER_VARIABLES or not (name.startswith(JOB_PREFIXES) or name in overriding)
    }


def ask(
    argv: Sequence[str],
    env: Mapping[str, str],
    timeout_s: float = SLURM_ANSWERS_S,
    stdin: str | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run one of Slurm's commands as if from outside any job, without the user's settings for it.

    The user's variables for sbatch are kept, since they are settings of jobs.

    Raises:
        SlurmNotResponding: Slurm does not answer in time.
        MusterError: the command is not installed.
    """
    try:
        return subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=environment_for(argv[0], scrubbed(env)),
            check=False,
        )
    except FileNotFoundError:
        raise MusterError(_missing(argv[0])) from None
    except subprocess.TimeoutExpired:
        raise SlurmNotResponding(
            f"Slurm does not answer: {argv[0]} timed out after {timeout_s:.0f} s"
        ) from None


def refuse_missing(tool: str) -> None:
    """Refuse to continue without this Slurm command.

    Raises:
        UsageError: there is no such program on PATH.
    """
    if shutil.which(tool) is None:
        raise UsageError(_missing(tool))


def _missing(tool: str) -> str:
    return (
        f"--launcher slurm, but {tool} is not installed here"
        "\ntip: run this on a login node of the cluster, or from here with --login me@cluster; "
        "for machines without Slurm, use --hosts"
    )


def name(env: Mapping[str, str], timeout_s: float = SLURM_IS_SILENT_S) -> str:
    """The cluster's own name, to distinguish its job 12 from another cluster's.

    Raises:
        SlurmNotResponding: Slurm does not answer.
        MusterError: Slurm is not installed.
    """
    return configured("ClusterName", env, timeout_s)


def configured(key: str, env: Mapping[str, str], timeout_s: float = SLURM_IS_SILENT_S) -> str:
    """A value in Slurm's configuration.

    Raises:
        SlurmNotResponding: Slurm does not answer.
        MusterError: Slurm is not installed.
    """
    result = ask(["scontrol", "show", "config"], env, timeout_s)
    match = re.search(rf"^{key}\s*=\s*(\S+)", result.stdout, re.MULTILINE)
    if match is None:
        raise SlurmNotResponding(f"Slurm does not answer: {last_line(result.stderr)}")
    return match[1]


def host_names(nodelist: str, env: Mapping[str, str]) -> list[str]:
    """The nodes of a list such as `node[0-3]`, in Slurm's order.

    Raises:
        MusterError: Slurm gives no answer.
    """
    result = ask(["scontrol", "show", "hostnames", nodelist], env, SLURM_IS_SILENT_S)
    lines = [line.split() for line in result.stdout.splitlines()]
    names = [words[0] for words in lines if len(words) == 1]  # other lines are the site's own texts
    if result.returncode or not names:
        raise MusterError(
            f"Slurm cannot expand the node list {nodelist}: {last_line(result.stderr)}"
        )
    return names


@cache
def belongs_to_cluster(sinfo: str | None) -> bool:
    """Whether this machine is in a Slurm cluster; each sinfo is asked once for all runs of a study.

    A slow or silent controller is no reason to train on this machine.
    """
    try:
        answer = ask(["sinfo", "--noheader"], os.environ, SLURM_CLUSTER_ANSWERS_S)
    except MusterError:
        return True
    return answer.returncode == 0 or NO_CLUSTER not in answer.stderr


class PartitionNode(NamedTuple):
    """A node of a partition, with what Slurm reports about both."""

    partition: str
    time_limit: str
    cores: int
    memory_mb: int
    is_out: bool  # it is down or drained
    gpus: int


def nodes_of(partitions: str, env: Mapping[str, str]) -> list[PartitionNode]:
    """The nodes of these partitions, including nodes that are down; "" is the default partition.

    Raises:
        MusterError: Slurm does not answer.
    """
    output = ask(["sinfo", "--noheader", "--Node", f"--format={NODE_FORMAT}"], env).stdout
    nodes = []
    rows = (line.split("|") for line in output.splitlines())
    # rows of another length are the site's own texts
    for name, limit, cores, memory, state, gres in (row for row in rows if len(row) == 6):
        plain = name.rstrip("*")  # the default partition has a star at its end
        if plain in partitions.split(",") if partitions else name != plain:
            is_out = state.startswith(NODE_IS_OUT) or state.endswith("*")  # it does not respond
            gpus = sum(map(int, GRES_GPUS.findall(gres)))
            nodes.append(PartitionNode(plain, limit, int(cores), int(memory), is_out, gpus))
    return nodes


def cores_per_gpu(partition: str, env: Mapping[str, str]) -> int | None:
    """The number of cores per GPU of a partition's nodes; "" is the default partition.

    None if they have no GPUs, if the cluster itself sets a number of cores per GPU, or if Slurm
    gives no answer.
    """
    try:
        nodes = [node for node in nodes_of(partition, env) if node.gpus]
        partitions = sorted({node.partition for node in nodes})
        of_partitions = (ask(["scontrol", "show", "partition", name], env) for name in partitions)
        for result in (ask(["scontrol", "show", "config"], env), *of_partitions):
            if "DefCpuPerGPU" in result.stdout:
                return None
    except MusterError:
        return None
    return min((node.cores // node.gpus for node in nodes), default=None)


@dataclass(frozen=True)
class JobState:
    """A job's state, under Slurm's own name, such as PENDING."""

    name: str
    reason: str = ""  # why it waits, or why nothing is known
    start: str = ""  # for a waiting job the expected start, in Slurm's format
    end: str = ""  # when its time is over
    restarts: str = "0"  # how often Slurm has requeued it
    output: str = ""  # the file for what its batch script prints; patterns may be in the path

    @property
    def is_over(self) -> bool:
        return self.name in ENDED_STATES or self.name == FORGOTTEN


def forgotten(job_id: str) -> str:
    """A line about a job that Slurm has forgotten, and whose end is not recorded."""
    return f"Slurm no longer has job {job_id}, and no record shows how it ended"


def job_state(job_id: str, env: Mapping[str, str]) -> JobState:
    """The state of a job; `UNKNOWN` if Slurm does not answer."""
    try:
        return job_states([job_id], env)[job_id]
    except MusterError as error:
        return JobState(UNKNOWN, str(error))


def job_states(
    job_ids: Sequence[str], env: Mapping[str, str], timeout_s: float = SLURM_ANSWERS_S
) -> dict[str, JobState]:
    """The states of these jobs, from one squeue call; `FORGOTTEN` if Slurm has no record of a job.

    Raises:
        SlurmNotResponding: Slurm does not answer.
    """
    jobs = ",".join(job_ids)
    selection = ["--states=all", f"--jobs={jobs}", f"--Format={SQUEUE_FORMAT}"]
    argv = ["squeue", "--noheader", "--array", *selection]  # a line for each part of an array
    result = ask(argv, env, timeout_s)
    # squeue calls an id invalid only if it is given that id alone
    if result.returncode and "Invalid job id" not in result.stderr:
        raise SlurmNotResponding(f"Slurm does not answer: {last_line(result.stderr)}")
    states = dict.fromkeys(job_ids, JobState(FORGOTTEN))
    columns = len(SQUEUE_FIELDS)
    rows = (line.split("|", columns - 1) for line in result.stdout.splitlines())
    for number, name, state, start, end, reason, *more in (r for r in rows if len(r) == columns):
        plain = reason.strip().replace(" ", "_")  # as scontrol writes it
        plain = "" if plain == "None" else plain
        for job_id in {number, name} & states.keys():
            states[job_id] = JobState(state, plain, start, end, *more)
    return states


def end_unix_s(job_id: str, env: Mapping[str, str]) -> float | None:
    """When the time of a job is over; None if Slurm gives no answer."""
    try:
        return datetime.fromisoformat(job_state(job_id, env).end).timestamp()
    except ValueError:  # "N/A", or a site's own SLURM_TIME_FORMAT
        return None


def act_on(job_id: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Run a command of Slurm that changes a job; for a job that is over, a failure is ignored.

    Raises:
        SlurmNotResponding: Slurm does not answer.
        MusterError: Slurm refuses.
    """
    result = ask([*argv, job_id], env)
    if not result.returncode:
        return
    state = job_state(job_id, env)
    if state.name == UNKNOWN:
        raise SlurmNotResponding(state.reason)
    if not state.is_over:
        raise MusterError(f"{' '.join(argv)} {job_id} failed: {last_line(result.stderr)}")


def retry_while_silent(act: Callable[[], None], say: Callable[[str], None]) -> None:
    """Call `act`, and repeat it for two minutes while Slurm does not answer.

    Raises:
        SlurmNotResponding: Slurm still does not answer.
    """
    deadline = time.monotonic() + SLURM_IS_SILENT_S
    for earlier_calls in itertools.count():
        try:
            act()
            return
        except SlurmNotResponding as error:
            if time.monotonic() > deadline:
                raise
            if not earlier_calls:
                say(f"{error}; trying again for {SLURM_IS_SILENT_S:.0f} s")
        time.sleep(SLURM_ASKED_AGAIN_S)
