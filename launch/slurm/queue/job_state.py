"""What a job is doing, as Slurm says it; a controller that does not answer says nothing of a job.

Nothing here needs accounting (sacct).
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from launch.slurm import partitions
from launch.slurm.partitions import Silent, ask, last_line
from muster.errors import MusterError

OVER = frozenset(
    "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL OUT_OF_MEMORY PREEMPTED BOOT_FAIL DEADLINE"
    " REVOKED".split()
)
WAITING = frozenset("PENDING REQUEUED REQUEUE_HOLD REQUEUE_FED SPECIAL_EXIT".split())
# Ours, beside Slurm's own: it has no record of the job any more, or nothing can be found out.
FORGOTTEN, UNKNOWN = "FORGOTTEN", "UNKNOWN"
# Sites limit how often one may ask: once a second while a state changes, else ever more rarely.
FIRST_S, LAST_S = 1.0, 10.0
ALL_S = 5.0  # between two questions about many jobs
FORMAT = "JobArrayID:.|,State:.|,RestartCnt:.|,StartTime:.|,Reason:."  # of squeue, any width
SILENCE_S, RETRY_S = 120.0, 5.0  # of a controller that is asked to do something


@dataclass(frozen=True)
class JobState:
    """A job's state by Slurm's own name, such as PENDING."""

    name: str
    reason: str = ""  # why it waits, or why nothing is known
    restarts: int = 0  # how often it was requeued
    start: str = ""  # of one that waits: when it is expected to begin, as Slurm writes times

    @property
    def is_over(self) -> bool:
        return self.name in OVER or self.name == FORGOTTEN


def job_state(job_id: str, env: Mapping[str, str]) -> JobState:
    """What Slurm says of a job; `UNKNOWN` where it does not answer."""
    try:
        asked = ask(["scontrol", "show", "job", "--oneliner", job_id], env)
    except MusterError as error:
        return JobState(UNKNOWN, str(error))
    name = re.search(r"\bJobState=(\S+)", asked.stdout)
    if name is None:
        if "Invalid job id" in asked.stderr:
            return JobState(FORGOTTEN)
        return JobState(UNKNOWN, f"Slurm does not answer: {last_line(asked.stderr)}")
    reason = re.search(r"\bReason=(\S+)", asked.stdout)
    restarts = re.search(r"\bRestarts=(\d+)", asked.stdout)
    start = re.search(r"\bStartTime=(\S+)", asked.stdout)
    why = reason[1] if reason and reason[1] != "None" else ""
    return JobState(name[1], why, int(restarts[1]) if restarts else 0, start[1] if start else "")


def job_states(job_ids: Sequence[str], env: Mapping[str, str]) -> dict[str, JobState]:
    """What Slurm says of all of these jobs, asked at once; of those that it has no record of, too.

    Raises:
        Silent: it does not answer.
    """
    jobs = ",".join(job_ids)
    wanted = ["--states=all", f"--jobs={jobs}", f"--Format={FORMAT}"]
    argv = ["squeue", "--noheader", "--array", *wanted]  # a line for each part of an array
    asked = ask(argv, env)
    if asked.returncode and "Invalid job id" not in asked.stderr:  # of a single one
        raise Silent(f"Slurm does not answer: {last_line(asked.stderr)}")
    found = dict.fromkeys(job_ids, JobState(FORGOTTEN))
    for line in asked.stdout.splitlines():
        job_id, name, restarts, start, reason = line.split("|", 4)
        if job_id in found:
            why = reason.strip().replace(" ", "_")  # as scontrol writes it
            found[job_id] = JobState(name, why if why != "None" else "", int(restarts or 0), start)
    return found


def end_unix_s(job_id: str, env: Mapping[str, str]) -> float | None:
    """When the time of a job is up; None where Slurm does not say."""
    try:
        asked = ask(["scontrol", "show", "job", "--oneliner", job_id], env)
        found = re.search(r"\bEndTime=(\S+)", asked.stdout)
        return datetime.fromisoformat(found[1]).timestamp() if found else None
    except (MusterError, ValueError):  # "Unknown", or a site's own SLURM_TIME_FORMAT
        return None


def steps_named(name: str, job_id: str, env: Mapping[str, str]) -> list[str]:
    """The numbers, such as 12.3, of the steps of that name which a job has now.

    Raises:
        Silent: Slurm does not answer.
    """
    argv = ["squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i %j"]
    asked = ask(argv, env)
    if asked.returncode:
        raise Silent(f"Slurm does not answer: {last_line(asked.stderr)}")
    pairs = (line.split(maxsplit=1) for line in asked.stdout.splitlines())
    return [number for number, found in pairs if found == name]


def act_on(job_id: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Have Slurm do something to a job; one that is over is left as it is.

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


def patiently(act: Callable[[], None], say: Callable[[str], None]) -> None:
    """Do something, again and again for two minutes while Slurm does not answer.

    Raises:
        Silent: it still does not.
    """
    deadline = time.monotonic() + SILENCE_S
    warned = False
    while True:
        try:
            act()
            break
        except Silent as error:
            if time.monotonic() > deadline:
                raise
            if not warned:
                say(f"{error}; trying again for {SILENCE_S:.0f} s")
            warned = True
        time.sleep(RETRY_S)


@dataclass
class _Look:
    state: JobState
    sign: object
    at_s: float
    pause_s: float  # until the next
    is_shared: bool = False  # it was one of many that were asked about at once


class Watcher:
    """Looks at jobs, as often as one likes; Slurm is asked no more often than it should be."""

    def __init__(self, env: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._env = env
        self._clock = clock
        self._cluster: str | None = None
        self._looks: dict[str, _Look] = {}
        self._silence, self._silent_until_s = JobState(UNKNOWN), float("-inf")

    def cluster(self) -> str:
        """The name of the cluster that is asked.

        Raises:
            Silent: it does not answer.
            MusterError: there is no Slurm here.
        """
        if self._cluster is None:
            if self._clock() < self._silent_until_s:
                raise Silent(self._silence.reason)
            try:
                self._cluster = partitions.name(self._env)
            except Silent as error:
                self._note_silence(JobState(UNKNOWN, str(error)))
                raise
        return self._cluster

    def look_at(self, job_ids: Iterable[str]) -> None:
        """Have the states of all these jobs, at most 5 s old, by one question."""
        looks, now = self._looks, self._clock()
        wanted = [one for one in job_ids if one not in looks or not looks[one].state.is_over]
        due = any(one not in looks or now - looks[one].at_s >= ALL_S for one in wanted)
        if not due or now < self._silent_until_s:
            return
        try:
            found = job_states(wanted, self._env)
        except MusterError as error:
            self._note_silence(JobState(UNKNOWN, str(error)))
            found = dict.fromkeys(wanted, self._silence)
        for job_id, state in found.items():
            looks[job_id] = _Look(state, None, now, LAST_S, is_shared=True)

    def state(self, job_id: str, sign: object = None) -> JobState:
        """A job's state, at most 10 s old; 1 s where it has just changed.

        `sign` is what else one sees of the job, such as its files: the state may change with it.
        """
        look = self._looks.get(job_id)
        if look is not None:
            if look.is_shared and look.state.is_over:
                return look.state
            if sign != look.sign and not look.is_shared:
                look.sign, look.pause_s = sign, FIRST_S
            if self._clock() - look.at_s < look.pause_s:
                return look.state
        elif self._clock() < self._silent_until_s:  # it answers nobody, whichever job it is
            return self._silence
        state = job_state(job_id, self._env)
        if state.name == UNKNOWN:
            self._note_silence(state)
        same = look is not None and look.state.name == state.name
        pause_s = min(2 * look.pause_s, LAST_S) if look is not None and same else FIRST_S
        self._looks[job_id] = _Look(state, sign, self._clock(), pause_s)
        return state

    def _note_silence(self, state: JobState) -> None:
        self._silence, self._silent_until_s = state, self._clock() + LAST_S
