"""Call Slurm's commands, and read what they report of the cluster and of jobs.

A controller that does not answer says nothing about a job. Nothing here needs accounting (sacct),
which many small clusters do not run.
"""

import itertools
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from configs.settings import sbatch_options
from launch.deadlines import SLURM_ANSWERS_S, SLURM_ASKED_AGAIN_S, SLURM_IS_SILENT_S
from launch.nodes.survey import last_line
from muster.errors import MusterError, UsageError
from muster.tool_environment import environment_for

# A scheduler's variables confuse commands that are run inside one of its jobs.
FOREIGN = ("SLURM_", "SRUN_", "PMI_", "PMIX_", "SLURMD_", "SBATCH_CPU_BIND", "SBATCH_MEM_BIND")
# The user's own, which no job sets: where Slurm is, the user's identity, and srun's options.
OWN = frozenset(
    "SLURM_CONF SLURM_CONF_SERVER SLURM_CLUSTERS SLURM_JWT SLURM_ACCOUNT SLURM_PARTITION SLURM_QOS"
    " SLURM_RESERVATION SLURM_CONSTRAINT".split()
)
OVER = frozenset(
    "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL OUT_OF_MEMORY PREEMPTED BOOT_FAIL DEADLINE"
    " REVOKED".split()
)
GPUS = re.compile(r"\bgpu(?::[a-zA-Z][^:,\s(]*)?:(\d+)")  # in Slurm's text about a node
WAITING = frozenset("PENDING REQUEUED REQUEUE_HOLD REQUEUE_FED SPECIAL_EXIT".split())
# Our own states: Slurm has no record of the job any more, or nothing can be found out.
FORGOTTEN, UNKNOWN = "FORGOTTEN", "UNKNOWN"
# For squeue, in any width. A part of an array has its own number beside its name in the array.
FORMAT = "JobID:.|,JobArrayID:.|,State:.|,StartTime:.|,EndTime:.|,Reason:."


class Silent(MusterError):
    """Slurm does not answer: nothing is known of it, or of a job, and one may ask again."""


def scrubbed(env: Mapping[str, str], options: Iterable[str] = ()) -> dict[str, str]:
    """`env` without the variables of a surrounding job, which must not affect the next job.

    A user's settings for sbatch stay, except for what is decided here and for `options` (such as
    `gpus_per_node`) that were given: the variables would override them.
    """
    given = {name.replace("_", "-") for name in options}
    given |= {one for group in sbatch_options.ALTERNATIVES if group & given for one in group}
    decided = {*sbatch_options.UNUSED, *map(sbatch_options.variable, given)}
    return {
        name: value
        for name, value in env.items()
        if name in OWN or not (name.startswith(FOREIGN) or name in decided)
    }


def ask(
    argv: Sequence[str],
    env: Mapping[str, str],
    timeout_s: float = SLURM_ANSWERS_S,
    stdin: str | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run one of Slurm's commands as if from outside any job, without the user's settings for it.

    Those for sbatch stay, which are settings of jobs.

    Raises:
        Silent: its controller does not answer in time.
        MusterError: it is not installed.
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
        raise Silent(f"Slurm does not answer: {argv[0]} waited {timeout_s:.0f} s") from None


def refuse_missing(tool: str) -> None:
    """Refuse to ask Slurm where there is none.

    Raises:
        UsageError: there is no such program on PATH.
    """
    if shutil.which(tool) is None:
        raise UsageError(_missing(tool))


def _missing(tool: str) -> str:
    return (
        f"--launcher slurm, but there is no {tool} here; run this on a login node of the cluster, "
        "or from here with --login me@cluster; --hosts is for machines without Slurm"
    )


def name(env: Mapping[str, str], timeout_s: float = SLURM_IS_SILENT_S) -> str:
    """The cluster's own name, to distinguish its job 12 from another cluster's.

    Raises:
        Silent: Slurm does not answer.
        MusterError: it is not installed.
    """
    asked = ask(["scontrol", "show", "config"], env, timeout_s)
    found = re.search(r"^ClusterName\s*=\s*(\S+)", asked.stdout, re.MULTILINE)
    if found is None:
        raise Silent(f"Slurm does not answer: {last_line(asked.stderr)}")
    return found[1]


def host_names(nodelist: str, env: Mapping[str, str]) -> list[str]:
    """The nodes of a list such as `node[0-3]`, in Slurm's order.

    Raises:
        MusterError: Slurm gives no answer.
    """
    asked = ask(["scontrol", "show", "hostnames", nodelist], env, SLURM_IS_SILENT_S)
    lines = [line.split() for line in asked.stdout.splitlines()]
    names = [words[0] for words in lines if len(words) == 1]  # others are a site's own words
    if asked.returncode or not names:
        raise MusterError(f"Slurm names no nodes of {nodelist}: {last_line(asked.stderr)}")
    return names


def cores_per_gpu(partition: str, env: Mapping[str, str]) -> int | None:
    """The cores of a partition's nodes for each of their GPUs; "" is the default partition.

    None if they have no GPUs, if the cluster itself sets a number of cores per GPU, or if Slurm
    gives no answer.
    """
    cores, partitions = [], set()
    try:
        nodes = ask(["sinfo", "--noheader", "--Node", "--format=%P %c %G"], env).stdout
        rows = (line.split(maxsplit=2) for line in nodes.splitlines())
        for name, cpus, gres in (row for row in rows if len(row) == 3):  # not a site's own words
            plain = name.rstrip("*")  # the default one's ends with it
            gpus = sum(map(int, GPUS.findall(gres)))
            if gpus and (plain in partition.split(",") if partition else name != plain):
                cores.append(int(cpus) // gpus)
                partitions.add(plain)
        asked = (ask(["scontrol", "show", "partition", one], env) for one in sorted(partitions))
        for shown in (ask(["scontrol", "show", "config"], env), *asked):
            if "DefCpuPerGPU" in shown.stdout:
                return None
    except MusterError:
        return None
    return min(cores, default=None)


@dataclass(frozen=True)
class JobState:
    """A job's state by Slurm's own name, such as PENDING."""

    name: str
    reason: str = ""  # why it waits, or why nothing is known
    start: str = ""  # expected start of a waiting job, in Slurm's format
    end: str = ""  # when its time is over

    @property
    def is_over(self) -> bool:
        return self.name in OVER or self.name == FORGOTTEN


def forgotten(job_id: str) -> str:
    """What is known of a job that Slurm has forgotten, and of whose end there is no record."""
    return f"Slurm forgot job {job_id}, and no record says how it ended"


def job_state(job_id: str, env: Mapping[str, str]) -> JobState:
    """The state of a job from Slurm; `UNKNOWN` if it does not answer."""
    try:
        return job_states([job_id], env)[job_id]
    except MusterError as error:
        return JobState(UNKNOWN, str(error))


def job_states(
    job_ids: Sequence[str], env: Mapping[str, str], timeout_s: float = SLURM_ANSWERS_S
) -> dict[str, JobState]:
    """The states of these jobs from one question to Slurm, including those it has no record of.

    Raises:
        Silent: it does not answer.
    """
    jobs = ",".join(job_ids)
    wanted = ["--states=all", f"--jobs={jobs}", f"--Format={FORMAT}"]
    argv = ["squeue", "--noheader", "--array", *wanted]  # a line for each part of an array
    asked = ask(argv, env, timeout_s)
    if asked.returncode and "Invalid job id" not in asked.stderr:  # if a single one was asked for
        raise Silent(f"Slurm does not answer: {last_line(asked.stderr)}")
    found = dict.fromkeys(job_ids, JobState(FORGOTTEN))
    answers = (line.split("|", 5) for line in asked.stdout.splitlines())
    for number, name, state, start, end, reason in (one for one in answers if len(one) == 6):
        why = reason.strip().replace(" ", "_")  # in scontrol's form
        why = "" if why == "None" else why
        for job_id in {number, name} & found.keys():
            found[job_id] = JobState(state, why, start, end)
    return found


def end_unix_s(job_id: str, env: Mapping[str, str]) -> float | None:
    """When the time of a job is over; None if Slurm gives no answer."""
    try:
        return datetime.fromisoformat(job_state(job_id, env).end).timestamp()
    except ValueError:  # "N/A", or a site's own SLURM_TIME_FORMAT
        return None


def act_on(job_id: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Make Slurm act on a job; a job that is over is not changed.

    Raises:
        Silent: it does not answer.
        MusterError: it refuses.
    """
    asked = ask([*argv, job_id], env)
    if not asked.returncode:
        return
    state = job_state(job_id, env)
    if state.name == UNKNOWN:
        raise Silent(state.reason)
    if not state.is_over:
        raise MusterError(f"{' '.join(argv)} {job_id} failed: {last_line(asked.stderr)}")


def retry_while_silent(act: Callable[[], None], say: Callable[[str], None]) -> None:
    """Call `act`, and repeat it for two minutes while Slurm does not answer.

    Raises:
        Silent: it still does not answer.
    """
    deadline = time.monotonic() + SLURM_IS_SILENT_S
    for tried in itertools.count():
        try:
            act()
            return
        except Silent as error:
            if time.monotonic() > deadline:
                raise
            if not tried:
                say(f"{error}; trying again for {SLURM_IS_SILENT_S:.0f} s")
        time.sleep(SLURM_ASKED_AGAIN_S)
