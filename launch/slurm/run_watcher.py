"""What the runs of Slurm's jobs are doing: Slurm says so, their folders, or who submits them."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launch.runs import run_record
from launch.runs.run_state import PATIENCE_S, LeaderWatcher, Record, State, ended
from launch.slurm import pending, run_job
from launch.slurm.controller import (
    FORGOTTEN,
    UNKNOWN,
    WAITING,
    JobState,
    Silent,
    act_on,
    ask,
    last_line,
    patiently,
)
from launch.slurm.submitted_job import Watcher
from muster.errors import MusterError


class SlurmRunWatcher(LeaderWatcher):
    """Of runs that are jobs of Slurm; until they are, a process submits them."""

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
        # one that has ended otherwise is perhaps requeued
        return ended(end) if end is not None and (end["code"] == 0 or state.over) else state

    def look_at(self, jobs: Sequence[Record]) -> None:
        numbers = {str(job["job_id"]) for job in jobs if job["job_id"] != run_record.NOT_YET}
        if numbers:
            self._jobs.look_at(sorted(numbers))

    def stop(self, run_dir: Path, job: Record, say: Callable[[str], None]) -> None:
        """Once it has its number, which a controller may take its time to give."""
        deadline = time.monotonic() + PATIENCE_S
        while job["job_id"] == run_record.NOT_YET:
            if time.monotonic() > deadline:
                raise MusterError(
                    f"{run_dir.name} is being submitted by process {job['pid']} on {job['host']}; "
                    "try again when that has ended"
                )
            if self.state(run_dir, job, run_record.read_end(run_dir)).over:
                return
            time.sleep(0.2)
            job = run_record.read_job(run_dir) or job

        step = run_job.step_of(run_dir)
        if step is not None and job["host"] == socket.gethostname():
            self._leaders.stop(run_dir, job, say)
            return

        def scancel() -> None:
            if elsewhere := self._elsewhere(job):
                raise MusterError(elsewhere)
            job_id = str(job["job_id"])
            if step is None:
                act_on(job_id, ["scancel"], os.environ)
            for number in _steps_named(step, job_id, os.environ) if step else ():
                act_on(number, ["scancel", "--signal=TERM"], os.environ)

        patiently(scancel, say)

    def _of_step(self, run_dir: Path, job: Record, end: Record | None) -> State:
        """Of a run in a job that is not its own, which goes on after it."""
        here, job_id = self._leaders.state(run_dir, job, end), str(job["job_id"])
        if here.over:
            return here
        inside = replace(here, detail=f"in job {job_id}; {here.detail}")
        if here.word == LeaderWatcher.running:
            return inside
        state = self._of_job(run_dir, job)  # led elsewhere: Slurm knows whether its step is there
        if state.over or state.word != "running":
            return replace(state, word="lost") if state.over else state
        return replace(inside, word=LeaderWatcher.running)

    def _of_job(self, run_dir: Path, job: Record) -> State:
        job_id = str(job["job_id"])
        try:
            if elsewhere := self._elsewhere(job):
                return State("elsewhere", False, elsewhere)
        except MusterError as error:
            return State("unknown", False, f"job {job_id}; {error}")
        state = self._jobs.state(job_id, run_record.signs(run_dir))
        if state.name == FORGOTTEN:
            return State(
                "lost", True, f"Slurm forgot job {job_id}, and no record says how it ended"
            )
        attempt = job.get("attempt")
        if attempt is not None and state.restarts > attempt and state.name not in WAITING:
            return State(
                "lost", True, f"job {job_id} goes on as attempt {state.restarts}, another run"
            )
        why = state.reason if state.name in (*WAITING, UNKNOWN) else ""
        detail = "; ".join(filter(None, (f"job {job_id}", why)))
        return State(state.name.lower(), state.is_over, detail, _notes(state, job_id))

    def _elsewhere(self, job: Record) -> str | None:
        """Where the job is, if not on the cluster that answers here: its number is another's here.

        Raises:
            MusterError: Slurm does not answer, or is not here.
        """
        theirs = job.get("cluster")
        ours = self._jobs.cluster() if theirs is not None else None
        if theirs == ours:
            return None
        return (
            f"job {job['job_id']} is one of cluster {theirs}, and this is {ours}; "
            f"look after it there, or with SLURM_CLUSTERS={theirs}"
        )


def _notes(state: JobState, job_id: str) -> tuple[str, ...]:
    """Why a job waits, and until when."""
    if state.name not in WAITING:
        return ()
    is_held = "Held" in state.reason  # until somebody releases it, whatever its time says
    start = None if is_held else pending.expected_start(state.start)
    return tuple(filter(None, (pending.explained(state.reason or "None", job_id), start)))


def _steps_named(name: str, job_id: str, env: Mapping[str, str]) -> list[str]:
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
