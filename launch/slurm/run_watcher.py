"""Find what the runs of Slurm's jobs are doing, from Slurm, their folders or their submitters.

How often Slurm is asked (`JobStates`): callers may look as often as they like. One question is
about all jobs, and the next one comes 5 s later, or 1 s after a change of a job's own files. A
controller that did not answer is not asked for 10 s. Until then the state is UNKNOWN, which never
counts as the end of a job. FORGOTTEN means that it answered, and has no such job: it forgets jobs
some minutes after their end (MinJobAge).

How a run has ended that has no record of it (`_judged`): its job never had a leader, or lost it.
Then Slurm's word and the records of agents and ranks decide. Nobody records that.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launch.deadlines import (
    JOB_ASKED_AFTER_CHANGE_S,
    JOB_ASKED_AFTER_SILENCE_S,
    JOB_ASKED_EVERY_S,
    SLURM_ANSWERS_S,
    SLURM_NUMBERS_JOB_S,
    SLURM_NUMBERS_JOB_TICK_S,
)
from launch.ends import OUT_OF_MEMORY, End, Kind
from launch.runs import run_record
from launch.runs.failure import Failure, end_record_of, explain
from launch.runs.run_state import CANCELLED, LeaderWatcher, Record, State, state_after
from launch.slurm import controller, run_job
from launch.slurm.controller import (
    FORGOTTEN,
    OVER,
    UNKNOWN,
    WAITING,
    JobState,
    Silent,
    act_on,
    forgotten,
    job_states,
    retry_while_silent,
)
from muster import run_files
from muster.errors import MusterError

REASONS = "what that is: https://slurm.schedmd.com/job_reason_codes.html"
NO_TIME = ("", "N/A", "Unknown")
ENDED_BY_SLURM = OVER - {"COMPLETED", "FAILED", "CANCELLED"}


class JobStates:
    """The states of jobs: one may look at any time, but Slurm is asked only as often as allowed."""

    def __init__(
        self,
        env: Mapping[str, str],
        patience_s: float = SLURM_ANSWERS_S,
        cluster: str | None = None,  # its name, where that is known
    ) -> None:
        self._env = env
        self._patience_s = patience_s
        self._cluster = cluster
        self._states: dict[str, JobState] = {}
        self._signs: dict[str, object] = {}
        self._next_s = float("-inf")  # when Slurm may be asked again about known jobs
        self._silence = JobState(UNKNOWN)
        self._silent_until_s = float("-inf")

    def cluster(self) -> str:
        """The name of the cluster that is asked.

        Raises:
            Silent: it does not answer.
            MusterError: there is no Slurm here.
        """
        if self._cluster is None:
            if time.monotonic() < self._silent_until_s:
                raise Silent(self._silence.reason)
            try:
                self._cluster = controller.name(self._env, self._patience_s)
            except Silent as error:
                self._note(error)
                raise
        return self._cluster

    def look_at(self, job_ids: Iterable[str]) -> None:
        """Get the states of all these jobs with one question; they are at most 5 s old."""
        known = self._states
        now = time.monotonic()
        wanted = [each for each in job_ids if each not in known or not known[each].is_over]
        is_due = now >= self._next_s or not known.keys() >= {*wanted}
        if not wanted or not is_due or now < self._silent_until_s:
            return
        try:
            known.update(job_states(wanted, self._env, self._patience_s))
        except MusterError as error:
            self._note(error)
            known.update(dict.fromkeys(wanted, self._silence))
        self._next_s = now + JOB_ASKED_EVERY_S

    def state(self, job_id: str, sign: object = None) -> JobState:
        """A job's state, at most 5 s old.

        `sign` is anything else that shows a change of the job, such as its files: if it has
        changed, the state is at most 1 s old.
        """
        if sign != self._signs.get(job_id):
            self._signs[job_id] = sign
            self._next_s = min(self._next_s, time.monotonic() + JOB_ASKED_AFTER_CHANGE_S)
        self.look_at({**self._states, job_id: None})
        return self._states.get(job_id, self._silence)  # no answer about any job

    def _note(self, error: MusterError) -> None:
        self._silence = JobState(UNKNOWN, str(error))
        self._silent_until_s = time.monotonic() + JOB_ASKED_AFTER_SILENCE_S


class SlurmRunWatcher(LeaderWatcher):
    """Watches runs that are jobs of Slurm; until they are, a process submits them."""

    running = "submitting"

    def __init__(
        self,
        env: Mapping[str, str] = os.environ,
        patience_s: float = SLURM_ANSWERS_S,
        cluster: str | None = None,
    ) -> None:
        """`patience_s`: who waits for a job has more than who wants to see it now."""
        self._jobs = JobStates(env, patience_s, cluster)
        self._leaders = LeaderWatcher()

    def state(self, run_dir: Path, job: Record, end: Record | None) -> State:
        if job["job_id"] == run_record.NOT_YET:
            return super().state(run_dir, job, end)
        if run_job.step_of(run_dir) is not None:
            return self._of_step(run_dir, job, end)
        state = self._of_job(run_dir, job)
        # a job that has ended otherwise is perhaps requeued
        return state_after(end) if end is not None and (end["code"] == 0 or state.over) else state

    def look_at(self, jobs: Sequence[Record]) -> None:
        numbers = {str(job["job_id"]) for job in jobs if job["job_id"] != run_record.NOT_YET}
        if numbers:
            self._jobs.look_at(sorted(numbers))

    def stop(self, run_dir: Path, job: Record, say: Callable[[str], None]) -> None:
        """Cancel it once it has its number, for which a controller may need some time."""
        deadline = time.monotonic() + SLURM_NUMBERS_JOB_S
        while job["job_id"] == run_record.NOT_YET:
            if time.monotonic() > deadline:
                raise MusterError(
                    f"{run_dir.name} is being submitted by process {job['pid']} on {job['host']}; "
                    "try again when that has ended"
                )
            if self.state(run_dir, job, run_record.read_end(run_dir)).over:
                return
            time.sleep(SLURM_NUMBERS_JOB_TICK_S)
            job = run_record.own_job(run_dir) or job

        if run_job.step_of(run_dir) is not None:  # its job must not end with the run
            self._leaders.stop(run_dir, job, say)
            return

        def scancel() -> None:
            if elsewhere := self._elsewhere(job):
                raise MusterError(elsewhere)
            act_on(str(job["job_id"]), ["scancel"], os.environ)

        retry_while_silent(scancel, say)

    def _of_step(self, run_dir: Path, job: Record, end: Record | None) -> State:
        """The state of a run in a job that is not its own, which continues after it."""
        led = self._leaders.state(run_dir, job, end)
        if led.word == "elsewhere" and (state := self._of_job(run_dir, job)).over:
            return replace(state, word="lost")  # its leader has ended with the job
        return led if led.over else replace(led, detail=f"in job {job['job_id']}; {led.detail}")

    def _of_job(self, run_dir: Path, job: Record) -> State:
        job_id = str(job["job_id"])
        try:
            if elsewhere := self._elsewhere(job):
                return State("elsewhere", False, elsewhere)
        except MusterError as error:
            return State("unknown", False, f"job {job_id}; {error}")
        state = self._jobs.state(job_id, run_record.change_stamp(run_dir))
        if state.is_over:
            over = state_after(_judged(run_dir, job_id, state))
            return replace(over, word="lost") if state.name == FORGOTTEN else over
        why = state.reason if state.name in (*WAITING, UNKNOWN) else ""
        detail = "; ".join(filter(None, (f"job {job_id}", why)))
        return State(state.name.lower(), False, detail, _notes(state))

    def _elsewhere(self, job: Record) -> str | None:
        """Where the job is, if not on this cluster, where its number would be another job's.

        Raises:
            MusterError: Slurm does not answer, or is not installed.
        """
        theirs = job.get("cluster")
        ours = self._jobs.cluster() if theirs is not None else None
        if theirs == ours:
            return None
        return (
            f"job {job['job_id']} is one of cluster {theirs}, and this is {ours}; "
            f"look after it there, or with SLURM_CLUSTERS={theirs}"
        )


def _judged(run_dir: Path, job_id: str, state: JobState) -> Record:
    """How a run ended whose leader has recorded nothing, in the form of such a record."""
    if state.name == "CANCELLED":
        has_begun = bool(run_files.AGENT.find(run_dir))
        message = "cancelled" if has_begun else "cancelled before it began"
        end = End(Kind.SIGNAL, "", 0.0, signal=CANCELLED - 128)
        return end_record_of(Failure(CANCELLED, message, cause=end.kind.word, end=end))
    is_forgotten = state.name == FORGOTTEN
    text = forgotten(job_id) if is_forgotten else f"Slurm says {state.name} of job {job_id}"
    of_job = End(Kind.JOB, "", 0.0, message=text)
    if state.name in ENDED_BY_SLURM:  # what ranks say is a consequence
        cause = OUT_OF_MEMORY if state.name == "OUT_OF_MEMORY" else of_job.kind.word
        return end_record_of(Failure(1, f"error: {text}", cause=cause, end=of_job))
    is_own = run_job.step_of(run_dir) is None  # the job's exit code is that of the run's leader
    code = 0 if state.name == "COMPLETED" and is_own else 1
    failure = explain(run_dir, run_job.world_size(run_dir), code, of_job)
    return end_record_of(failure or Failure(0, ""))


def _notes(state: JobState) -> tuple[str, ...]:
    """Why a job waits, in Slurm's own word, and until when."""
    if state.name not in WAITING:
        return ()
    why = f"{state.reason or 'None'}: {REASONS}"
    is_held = "Held" in state.reason  # until somebody releases it, whatever its expected start
    if is_held or state.start in NO_TIME:
        return (why,)
    return why, f"expected start: {state.start}, as far as Slurm knows"
