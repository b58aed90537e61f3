"""What a job is doing, as Slurm says it; a controller that does not answer says nothing of a job.

Nothing here needs accounting (sacct).

How often Slurm is asked (`Watcher`): callers may look as often as they like. One question is about
all jobs. After a change of state, or of the job's own files, the next question comes after 1 s;
each time that nothing has changed the pause doubles, up to 10 s. With several jobs it is 5 s. A
controller that did not answer is left alone for 10 s, and until then the state is UNKNOWN, which
is never taken for the end of a job. FORGOTTEN means that it answered, and has no such job: jobs
leave its memory some minutes after their end (MinJobAge).
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from launch.slurm import controller
from launch.slurm.controller import Silent, ask, last_line
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
# Of squeue, in any width. A part of an array has a number of its own, beside its name in it.
FORMAT = "JobID:.|,JobArrayID:.|,State:.|,RestartCnt:.|,StartTime:.|,EndTime:.|,Reason:."
SILENCE_S, RETRY_S = 120.0, 5.0  # of a controller that is asked to do something


@dataclass(frozen=True)
class JobState:
    """A job's state by Slurm's own name, such as PENDING."""

    name: str
    reason: str = ""  # why it waits, or why nothing is known
    restarts: int = 0  # how often it was requeued
    start: str = ""  # of one that waits: when it is expected to begin, as Slurm writes times
    end: str = ""  # when its time is up

    @property
    def is_over(self) -> bool:
        return self.name in OVER or self.name == FORGOTTEN


def job_state(job_id: str, env: Mapping[str, str]) -> JobState:
    """What Slurm says of a job; `UNKNOWN` where it does not answer."""
    try:
        return job_states([job_id], env)[job_id]
    except MusterError as error:
        return JobState(UNKNOWN, str(error))


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
        number, name, state, restarts, start, end, reason = line.split("|", 6)
        why = reason.strip().replace(" ", "_")  # as scontrol writes it
        why = "" if why == "None" else why
        for job_id in {number, name} & found.keys():
            found[job_id] = JobState(state, why, int(restarts or 0), start, end)
    return found


def end_unix_s(job_id: str, env: Mapping[str, str]) -> float | None:
    """When the time of a job is up; None where Slurm does not say."""
    try:
        return datetime.fromisoformat(job_state(job_id, env).end).timestamp()
    except ValueError:  # "N/A", or a site's own SLURM_TIME_FORMAT
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
                self._cluster = controller.name(self._env)
            except Silent as error:
                self._note_silence(JobState(UNKNOWN, str(error)))
                raise
        return self._cluster

    def look_at(self, job_ids: Iterable[str]) -> None:
        """Have the states of all these jobs, by one question; of several at most 5 s old."""
        looks, now = self._looks, self._clock()
        wanted = [one for one in job_ids if one not in looks or not looks[one].state.is_over]
        is_due = any(
            one not in looks
            or now - looks[one].at_s >= (looks[one].pause_s if len(wanted) == 1 else ALL_S)
            for one in wanted
        )
        if not is_due or now < self._silent_until_s:
            return
        try:
            found = job_states(wanted, self._env)
        except MusterError as error:
            self._note_silence(JobState(UNKNOWN, str(error)))
            found = dict.fromkeys(wanted, self._silence)
        for job_id, state in found.items():
            pause_s, sign = FIRST_S, None
            if (before := looks.get(job_id)) is not None:
                sign = before.sign
                if before.state.name == state.name:
                    pause_s = min(2 * before.pause_s, LAST_S)
            looks[job_id] = _Look(state, sign, now, pause_s)

    def state(self, job_id: str, sign: object = None) -> JobState:
        """A job's state, at most 10 s old; 1 s where it has just changed.

        `sign` is what else one sees of the job, such as its files: the state may change with it.
        """
        look = self._looks.get(job_id)
        if look is not None and sign != look.sign:
            look.sign, look.pause_s = sign, FIRST_S
        self.look_at({**self._looks, job_id: None})
        look = self._looks.get(job_id)
        return self._silence if look is None else look.state  # it answers nobody, whichever it is

    def _note_silence(self, state: JobState) -> None:
        self._silence, self._silent_until_s = state, self._clock() + LAST_S
