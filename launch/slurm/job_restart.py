"""A run that lost a worker or a node starts again inside its allocation, smaller if need be."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from launch.runs import continuation
from launch.runs.archive import archive_attempt
from launch.runs.failure import explain
from launch.runs.restart import MOST_IDLE, Outcome, give_up, last_step
from launch.slurm import job_files, node_health
from launch.slurm.allocation import Allocation, tasks_per_node
from muster import run_files


def again(run_dir: Path, code: int) -> list[str] | None:
    """srun's further options for the next attempt, which is made ready; None: there is none.

    Slurm leaves a job that loses a node its other nodes only where it was submitted with
    --no-kill; else it ends the job, and requeues it.
    """
    spec, job = job_files.read_spec(run_dir)
    failure = explain(run_dir, None, code)
    if failure is None or not Outcome(failure.code).is_worth_another:
        return None
    if spec.attempt >= job["max_restarts"]:
        return None
    reached = [last_step(path) for path in run_files.attempt_folders(run_dir).values()]
    reached.append(last_step(run_dir))
    print("\n".join((*failure.context, failure.text)), file=sys.stderr)
    if len(reached) > MOST_IDLE and max(reached[-MOST_IDLE:]) <= max(reached[:-MOST_IDLE]):
        give_up(spec, max(reached))
        return None
    answer = node_health.answers(Allocation.from_env(os.environ), os.environ)
    for name in (name for name, is_here in answer.items() if not is_here):
        print(f"note: going on without it: {name} does not answer", file=sys.stderr)
    left, least = sum(answer.values()), job["least_nodes"]
    if left < least:
        print(f"{left} nodes answer, of at least {least}: no restart", file=sys.stderr)
        return None
    archive_attempt(run_dir, spec.attempt)
    spec = replace(continuation.with_flags(spec, run_dir), attempt=spec.attempt + 1)
    everyone = job.get("everyone", job["nproc"])  # a node that is gone now may be back later
    nproc = [own for own, is_here in zip(everyone, answer.values(), strict=True) if is_here]
    job_files.rewrite_spec(spec, {**job, "everyone": everyone, "nproc": nproc})
    job_files.decide_head(run_dir)
    print(
        f"restart {spec.attempt} of {job['max_restarts']}: {left} nodes go on from the last "
        "checkpoint",
        file=sys.stderr,
        flush=True,
    )
    if all(answer.values()):
        return []
    return node_health.srun_options(answer, tasks_per_node(os.environ["SLURM_TASKS_PER_NODE"]))
