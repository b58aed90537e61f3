"""Queue one run in several jobs: the first to start leads it, and the others are withdrawn.

Slurm itself lets a job wait in several partitions, but with one account. Where partitions need
accounts of their own, there is a job for each account.

    a job has started      it claims the run: a file with its number, which one job alone can make
    it was the first       it cancels the others, and leads the run
    it was not             it ends with exit code 0, having done nothing

The first may start before the last is submitted. So the submitting process records the numbers and
then looks for the claim, while a job claims the run and then reads the numbers: one of them sees
both, and cancels the others. What is not cancelled ends by itself when it starts. A requeued job
finds its own claim, and goes on.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.runs import run_record
from launch.slurm.controller import act_on
from launch.slurm.current_job import CurrentJob
from launch.spec import LaunchSpec
from muster import run_files
from muster.errors import MusterError
from muster.writing import force, writing

ENDS_ITSELF = "it ends as soon as it starts"


def is_first(run_dir: Path, current: CurrentJob) -> bool:
    """Whether this job is the first of several to start; then the others are cancelled.

    Raises:
        MusterError: the run cannot be claimed, or its claim cannot be read.
    """
    first = _claim(run_dir, current.job_id)
    if first != current.job_id:
        print(f"job {first} was the first to start, and leads the run; this one ends")
        return False
    queued = (run_record.own_job(run_dir) or {}).get("job_ids", ())
    withdraw([job_id for job_id in queued if job_id != first], os.environ, ENDS_ITSELF)
    return True


def _claim(run_dir: Path, job_id: str) -> str:
    """Claim the run for this job, unless another one has; return the number of the one that has."""
    path = run_files.FIRST_JOB.path(run_dir)
    own = path.with_name(f"{path.name}.{job_id}.partial")
    with writing(path):
        try:
            own.write_text(job_id, encoding="utf-8")
            force(own)
            os.link(own, path)  # it replaces no file, and readers see all of it
        except FileExistsError:
            pass
        finally:
            own.unlink(missing_ok=True)
    first = run_record.first_job(run_dir)
    if first is None:
        raise MusterError(f"{path} does not name the job that leads the run; submit it again")
    return first


def record(spec: LaunchSpec, job_ids: list[str], cluster: str, env: Mapping[str, str]) -> list[str]:
    """Record the jobs that this process has queued for a run; return those that are left.

    These are all; or if one has started, that one, and the others are cancelled.
    """
    run_record.record_submission(spec, "slurm", job_ids[0], cluster, job_ids)
    first = run_record.first_job(spec.run_dir)
    if first is None:
        return job_ids
    # its leader may have begun before this process recorded the numbers, or at the same moment
    run_record.begin(spec, "slurm", first, cluster=cluster, job_ids=job_ids)
    withdraw([job_id for job_id in job_ids if job_id != first], env, ENDS_ITSELF)
    return [first]


def withdraw(job_ids: Sequence[str], env: Mapping[str, str], otherwise: str) -> None:
    """Cancel these jobs; if that fails, print why, and what happens to the job `otherwise`."""
    for job_id in job_ids:
        try:
            act_on(job_id, ["scancel"], env)
        except MusterError as error:
            line = f"note: job {job_id} is not cancelled: {error}; {otherwise}"
            print(line, file=sys.stderr, flush=True)
