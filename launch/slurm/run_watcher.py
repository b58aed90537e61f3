"""Find the states of runs that are Slurm jobs, from Slurm, run folders or submitting processes.

`JobStates` limits how often Slurm is asked, however often its callers ask. One question covers all
jobs. The next one follows 5 s later, or 1 s after a job's own files change. A controller that did
not answer is not asked again for 10 s. Until then the state is UNKNOWN, which never counts as the
end of a job. FORGOTTEN means that Slurm answers, but has no such job: it forgets jobs some minutes
after their end (MinJobAge).

A run whose job never had a leader, or lost it, may have no record of its end. Then `_judge_end`
decides how it ended, from Slurm's state of the job and from the records of agents and ranks. The
decision is not recorded.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from launch.deadlines import (
    JOB_ASKED_AFTER_CHANGE_S,
    JOB_ASKED_AFTER_SILENCE_S,
    JOB_ASKED_EVERY_S,
    SLURM_ANSWERS_S,
    SLURM_CLOCK_DIFFERS_S,
    SLURM_NUMBERS_JOB_S,
    SLURM_NUMBERS_JOB_TICK_S,
)
from launch.ends import OUT_OF_MEMORY, End, Kind
from launch.in_job import run_job
from launch.runs import run_record
from launch.runs.failure import Failure, end_record_of, explain
from launch.runs.run_state import CANCELLED, LeaderWatcher, Record, RunStatus, state_after
from launch.slurm import controller
from launch.slurm.controller import (
    ENDED_STATES,
    FORGOTTEN,
    UNKNOWN,
    WAITING_STATES,
    JobState,
    SlurmNotResponding,
    act_on,
    forgotten,
    job_states,
    retry_while_silent,
)
from muster import records, run_files
from muster.errors import MusterError

REASONS = "explained at https://slurm.schedmd.com/job_reason_codes.html"
NO_TIME = ("", "N/A", "Unknown")
ENDED_BY_SLURM = ENDED_STATES - {"COMPLETED", "FAILED", "CANCELLED"}


class JobStates:
    """The states of jobs; the module's docstring says how often Slurm is asked."""

    def __init__(
        self,
        env: Mapping[str, str],
        patience_s: float = SLURM_ANSWERS_S,
        cluster: str | None = None,  # its name, if that is known
    ) -> None:
        self._env = env
        self._patience_s = patience_s
        self._cluster = cluster
        self._states: dict[str, JobState] = {}
        self._change_stamps: dict[str, object] = {}
        self._next_s = float("-inf")  # when Slurm may be asked again about the same jobs
        self._silence = JobState(UNKNOWN)  # the state of each job while Slurm does not answer
        self._silent_until_s = float("-inf")

    def cluster(self) -> str:
        """The name of the cluster whose Slurm is asked.

        Raises:
            SlurmNotResponding: Slurm does not answer.
            MusterError: there is no Slurm here.
        """
        if self._cluster is None:
            if time.monotonic() < self._silent_until_s:
                raise SlurmNotResponding(self._silence.reason)
            try:
                self._cluster = controller.name(self._env, self._patience_s)
            except SlurmNotResponding as error:
                self._note_silence(error)
                raise
        return self._cluster

    def look_at(self, job_ids: Iterable[str]) -> None:
        """Get the states of all these jobs with one question; the states are at most 5 s old."""
        states = self._states
        now_s = time.monotonic()
        wanted = [
            job_id for job_id in job_ids if job_id not in states or not states[job_id].is_over
        ]
        is_due = now_s >= self._next_s or not states.keys() >= {*wanted}
        if not wanted or not is_due or now_s < self._silent_until_s:
            return
        try:
            states.update(job_states(wanted, self._env, self._patience_s))
        except MusterError as error:
            self._note_silence(error)
            states.update(dict.fromkeys(wanted, self._silence))
        self._next_s = now_s + JOB_ASKED_EVERY_S

    def state(self, job_id: str, change_stamp: object = None) -> JobState:
        """A job's state, at most 5 s old.

        `change_stamp` is any value that changes with the job, such as the times of its files. If it
        has changed, the state is at most 1 s old.
        """
        if change_stamp != self._change_stamps.get(job_id):
            self._change_stamps[job_id] = change_stamp
            self._next_s = min(self._next_s, time.monotonic() + JOB_ASKED_AFTER_CHANGE_S)
        self.look_at({**self._states, job_id: None})
        return self._states.get(job_id, self._silence)

    def _note_silence(self, error: MusterError) -> None:
        self._silence = JobState(UNKNOWN, str(error))
        self._silent_until_s = time.monotonic() + JOB_ASKED_AFTER_SILENCE_S


class SlurmRunWatcher(LeaderWatcher):
    """Watches runs that are Slurm jobs, or that a process is submitting to Slurm."""

    def __init__(
        self,
        env: Mapping[str, str] = os.environ,
        patience_s: float = SLURM_ANSWERS_S,
        cluster: str | None = None,
    ) -> None:
        """`patience_s` limits each question to Slurm: `--wait` gives more time than `status`."""
        self._jobs = JobStates(env, patience_s, cluster)

    def state(self, run_dir: Path, job: Record, end: Record | None) -> RunStatus:
        if job["job_id"] == run_record.NOT_YET:
            state = super().state(run_dir, job, end)
            return replace(state, word="submitting") if state.word == "running" else state
        if run_job.step_of(run_dir) is not None:
            return self._step_status(run_dir, job, end)
        state = self._job_status(run_dir, job)
        if end is None:
            return state
        # after a nonzero exit code, the job may be requeued, which only Slurm can tell
        is_known = state.word not in ("unknown", "elsewhere")
        goes_on = not state.is_over if is_known else run_job.may_be_requeued(run_dir, end)
        return state if end["code"] and goes_on else state_after(end)

    def look_at(self, jobs: Sequence[Record]) -> None:
        submitted = (job for job in jobs if job["job_id"] != run_record.NOT_YET)
        if numbers := sorted({job["job_id"] for job in submitted}):
            self._jobs.look_at(numbers)

    def stop(self, run_dir: Path, job: Record, say: Callable[[str], None]) -> None:
        """Cancel the job as soon as it has its number, which may take the controller some time."""
        deadline = time.monotonic() + SLURM_NUMBERS_JOB_S
        while job["job_id"] == run_record.NOT_YET:
            if time.monotonic() > deadline:
                raise MusterError(
                    f"{run_dir.name} is being submitted by process {job['pid']} on {job['host']}"
                    "\ntip: try again when that process has ended"
                )
            if self.state(run_dir, job, run_record.read_end(run_dir)).is_over:
                return
            time.sleep(SLURM_NUMBERS_JOB_TICK_S)
            job = run_record.own_job(run_dir) or job

        if run_job.step_of(run_dir) is not None:  # the job is not the run's own and must continue
            super().stop(run_dir, job, say)
            return

        def scancel() -> None:
            if problem := self._other_cluster(job):
                raise MusterError(problem)
            job_id = job["job_id"]
            state = _verified_state(run_dir, job, job_states([job_id], os.environ)[job_id])
            if state.name == UNKNOWN:
                raise MusterError(f"{run_dir.name} was not cancelled: {state.reason}")
            if not state.is_over:
                act_on(job_id, ["scancel"], os.environ)

        retry_while_silent(scancel, say)

    def _step_status(self, run_dir: Path, job: Record, end: Record | None) -> RunStatus:
        """The state of a run in a job that is not its own, and that continues after the run."""
        state = super().state(run_dir, job, end)
        if state.word == "elsewhere" and (of_job := self._job_status(run_dir, job)).is_over:
            return replace(of_job, word="lost")  # its leader has ended with the job
        if state.is_over:
            return state
        return replace(state, detail=f"in job {job['job_id']}; {state.detail}")

    def _job_status(self, run_dir: Path, job: Record) -> RunStatus:
        job_id = job["job_id"]
        try:
            if problem := self._other_cluster(job):
                return RunStatus("elsewhere", False, problem)
        except MusterError as error:
            return RunStatus("unknown", False, f"job {job_id}; {error}")
        stamp = run_record.change_stamp(run_dir)
        state = _verified_state(run_dir, job, self._jobs.state(job_id, stamp))
        if state.is_over:
            over = state_after(_judge_end(run_dir, job_id, state))
            return replace(over, word="lost") if state.name == FORGOTTEN else over
        reason = state.reason if state.name in (*WAITING_STATES, UNKNOWN) else ""
        detail = "; ".join(filter(None, (f"job {job_id}", reason)))
        return RunStatus(state.name.lower(), False, detail, _notes(state))

    def _other_cluster(self, job: Record) -> str | None:
        """A line if the job is on another cluster, since its number may be another job's here.

        Raises:
            MusterError: Slurm does not answer, or is not installed.
        """
        cluster = job.get("cluster")
        own = self._jobs.cluster() if cluster is not None else None
        if cluster == own:
            return None
        return (
            f"job {job['job_id']} is on cluster {cluster}, but this is {own}; "
            f"use that cluster, or set SLURM_CLUSTERS={cluster}"
        )


def _verified_state(run_dir: Path, job: Record, state: JobState) -> JobState:
    """`state` if it is about the run's own job; `FORGOTTEN` if another job has its number."""
    if state.name in (FORGOTTEN, UNKNOWN):
        return state
    match is_own(run_dir, job, state):
        case True:
            return state
        case False:
            return JobState(FORGOTTEN)
    return JobState(
        UNKNOWN,
        "Slurm has a job with this number, but it may not be this run's; "
        f"if it is, end it with: scancel {job['job_id']}",
    )


def is_own(run_dir: Path, job: Record, state: JobState) -> bool | None:
    """Whether the job that Slurm describes by `state` is the job in `job`, the run's record.

    Slurm may give the number to another job later: its counter starts again after its largest
    number, and after a new installation of Slurm. A job that Muster has submitted prints into a
    folder that no other job has. Any other job is recognized by its output file and its start:
    the run's leader started after the job, unless Slurm has restarted the job since then.

    None if the record does not show this, because an earlier version of Muster wrote it.
    """
    record = records.read(run_files.SLURM, run_files.SLURM.path(run_dir)) or {}
    recorded = record.get("output", "")
    if recorded and not recorded.endswith("/"):
        try:
            start_s = datetime.fromisoformat(state.start).timestamp()
        except ValueError:  # it has not started
            start_s = math.inf
        leader_start_s = float(job.get("started_unix_s", 0.0))
        is_led = state.restarts != "0" or start_s <= leader_start_s + SLURM_CLOCK_DIFFERS_S
        return state.output == recorded and is_led
    folder = recorded or f"{run_files.SUBMITIT.path(run_dir)}/"
    # as given to sbatch, with %% for %, or as Slurm has read it
    if any(path.startswith(folder) for path in (state.output, state.output.replace("%%", "%"))):
        return True
    return False if recorded else None


def _judge_end(run_dir: Path, job_id: str, state: JobState) -> Record:
    """Decide how a run ended whose leader recorded no end; the result is like such a record."""
    if state.name == "CANCELLED":
        has_begun = bool(run_files.AGENT.find(run_dir))
        message = "cancelled" if has_begun else "cancelled before it began"
        end = End(Kind.SIGNAL, "", 0.0, signal=CANCELLED - 128)
        return end_record_of(Failure(CANCELLED, message, cause=end.kind.word, end=end))
    is_forgotten = state.name == FORGOTTEN
    text = forgotten(job_id) if is_forgotten else f"Slurm reports {state.name} for job {job_id}"
    of_job = End(Kind.JOB, "", 0.0, message=text)
    if state.name in ENDED_BY_SLURM:  # the records of ranks show a consequence of this
        cause = OUT_OF_MEMORY if state.name == "OUT_OF_MEMORY" else of_job.kind.word
        return end_record_of(Failure(1, f"error: {text}", cause=cause, end=of_job))
    is_own = run_job.step_of(run_dir) is None  # the job's exit code is that of the run's leader
    code = 0 if state.name == "COMPLETED" and is_own else 1
    failure = explain(run_dir, run_job.world_size(run_dir), code, of_job)
    return end_record_of(failure or Failure(0, ""))


def _notes(state: JobState) -> tuple[str, ...]:
    """Lines about why a job is waiting, in Slurm's own word, and until when."""
    if state.name not in WAITING_STATES:
        return ()
    reason = f"{state.reason or 'None'}: {REASONS}"
    is_held = "Held" in state.reason  # until it is released, whatever its expected start
    if is_held or state.start in NO_TIME:
        return (reason,)
    return reason, f"expected start: {state.start}, by Slurm's estimate"
