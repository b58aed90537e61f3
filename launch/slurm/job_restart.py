"""A job's run starts again: inside its allocation, smaller if need be, or as a requeued job."""

import os
import sys
from pathlib import Path

from configs import cli
from configs.settings.train import TrainConfig
from launch.runs import restart, run_record
from launch.runs.failure import explain
from launch.runs.restart import Outcome
from launch.slurm import job_files, node_health
from launch.slurm.allocation import Allocation, tasks_per_node
from launch.slurm.inside.meeting import decide_on
from muster import run_files


def again(run_dir: Path, code: int) -> list[str] | None:
    """srun's further options for the next attempt, which is made ready; None: there is none.

    Slurm leaves a job that loses a node its other nodes only where it was submitted with
    --no-kill; else it ends the job, and requeues it.
    """
    spec, job = job_files.read_spec(run_dir)
    failure = explain(run_dir, None, code)
    if failure is None:
        return None
    why = "\n".join((*failure.context, failure.text))
    try:
        if not restart.is_due(spec, Outcome(failure.code)):
            return None
    except restart.GivenUp as given_up:
        run_record.end(spec, given_up.exit_code, str(given_up))
        print(f"{why}\nerror: {given_up}", file=sys.stderr)
        return None
    print(why, file=sys.stderr)
    answer = node_health.answers(Allocation.from_env(os.environ), os.environ)
    for name in (name for name, is_here in answer.items() if not is_here):
        print(f"note: going on without it: {name} does not answer", file=sys.stderr)
    left, least = sum(answer.values()), spec.least_nodes
    if left < least:
        print(f"{left} nodes answer, of at least {least}: no restart", file=sys.stderr)
        return None
    spec = restart.next_attempt(spec)
    everyone = job.get("everyone", job["nproc"])  # a node that is gone now may be back later
    nproc = [own for own, is_here in zip(everyone, answer.values(), strict=True) if is_here]
    job_files.write_spec(spec, {**job, "everyone": everyone, "nproc": nproc})
    if job.get("step"):
        decide_on(next(name for name, is_here in answer.items() if is_here), run_dir)
    else:
        job_files.decide_coordinator(run_dir)
    print(restart.announcement(spec, left), file=sys.stderr, flush=True)
    if all(answer.values()):
        return []
    return node_health.srun_options(answer, tasks_per_node(os.environ["SLURM_TASKS_PER_NODE"]))


def of_job(logs_root: Path, job_id: str, cluster: str | None) -> tuple[Path, list[str]] | None:
    """Where the last attempt of a Slurm job wrote its checkpoints, and the runs of its attempts."""
    found = []
    for path in logs_root.glob(f"*/{run_files.JOB.pattern}"):
        job = run_record.read_job(path.parent)
        here = job and job["launcher"] == "slurm" and job.get("cluster") in (cluster, None)
        if job and here and job["job_id"] == job_id:
            found.append((float(job["started_unix_s"]), path.parent))
    if not found:
        return None
    found.sort()
    run_dir = found[-1][1]  # a cluster may count its jobs from 1 again
    config = str(run_files.CONFIG.path(run_dir))
    (train,) = cli.parse([TrainConfig], ["--config", config], prog="", description="")
    folder = Path(train.checkpoint_dir or run_files.CHECKPOINTS.path(run_dir)).absolute()
    return folder, [path.name for _, path in found]
