"""Find what the runs of Slurm's jobs are doing, from Slurm, their folders or their submitters."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from launch.deadlines import SLURM_NUMBERS_JOB_S, SLURM_NUMBERS_JOB_TICK_S
from launch.runs import run_record
from launch.runs.run_state import LeaderWatcher, Record, State, ended
from launch.slurm import run_job
from launch.slurm.controller import (
    FORGOTTEN,
    UNKNOWN,
    WAITING,
    JobState,
    act_on,
    forgotten,
    retry_while_silent,
)
from launch.slurm.submitted_job import Watcher
from muster.errors import MusterError

REASONS = "what that is: https://slurm.schedmd.com/job_reason_codes.html"
NO_TIME = ("", "N/A", "Unknown")


class SlurmRunWatcher(LeaderWatcher):
    """Watches runs that are jobs of Slurm; until they are, a process submits them."""

    running = "submitting"

    def __init__(self) -> None:
        self._jobs = Watcher(os.environ)
        self._leaders = LeaderWatcher()

    def state(self, run_dir: Path, job: Record, end: Record | None) -> State:
        if job["job_id"] == run_record.NOT_YET:
            return super().state(run_dir, job, end)
        if run_job.step_of(run_dir) is not None:
            return self._of_step(run_dir, job, end)
        state = self._of_job(run_dir, job)
        # a job that has ended otherwise is perhaps requeued
        return ended(end) if end is not None and (end["code"] == 0 or state.over) else state

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
        if state.name == FORGOTTEN:
            return State("lost", True, forgotten(job_id))
        why = state.reason if state.name in (*WAITING, UNKNOWN) else ""
        detail = "; ".join(filter(None, (f"job {job_id}", why)))
        return State(state.name.lower(), state.is_over, detail, _notes(state))

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


def _notes(state: JobState) -> tuple[str, ...]:
    """Why a job waits, in Slurm's own word, and until when."""
    if state.name not in WAITING:
        return ()
    why = f"{state.reason or 'None'}: {REASONS}"
    is_held = "Held" in state.reason  # until somebody releases it, whatever its expected start
    if is_held or state.start in NO_TIME:
        return (why,)
    return why, f"expected start: {state.start}, as far as Slurm knows"
