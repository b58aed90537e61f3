"""A run that goes on: with which settings, and from which checkpoint."""

import json
from dataclasses import replace
from pathlib import Path

from configs import cli, run_files
from configs.schema import TrainConfig
from launch import registry
from launch.spec import LaunchSpec
from launch.supervise.agent import NOTICE


def continued(train: TrainConfig, run_dir: Path) -> TrainConfig:
    """The settings to go on from the newest checkpoint of this run; as they were without one."""
    folder = train.checkpoint_dir or run_files.CHECKPOINTS.path(run_dir)
    if train.resume is not None and not last_step(folder):
        return train  # it has not got further than what it was to go on from itself
    return replace(
        train, resume="auto", reset_optimizer=False, reset_lr_scheduler=False, reset_data=False
    )


def with_flags(spec: LaunchSpec, run_dir: Path) -> LaunchSpec:
    """`spec`, to go on from the newest checkpoint."""
    (train,) = cli.parse([TrainConfig], spec.worker_argv, prog="", description="")
    return replace(spec, worker_argv=tuple(cli.to_argv(continued(train, run_dir))))


def last_step(folder: Path) -> int:
    """The step of the newest finished checkpoint of a folder; 0 without any."""
    names = (path.parent.name.removeprefix("step_") for path in folder.glob("step_*/manifest.json"))
    return max((int(name) for name in names if name.isdigit()), default=0)


def stopped_for_notice(run_dir: Path) -> bool:
    """Whether the workers stopped, in order, since their time was up."""
    try:
        return bool(json.loads(run_files.STOPPED.path(run_dir).read_text())["why"] == NOTICE)
    except (OSError, ValueError, KeyError):
        return False


def checkpoints_of_job(logs_root: Path, job_id: str, cluster: str | None) -> Path | None:
    """Where the last attempt of a Slurm job wrote its checkpoints."""
    found = []
    for path in logs_root.glob(f"*/{run_files.JOB.pattern}"):
        job = registry.read_job(path.parent)
        here = job and job["launcher"] == "slurm" and job.get("cluster") in (cluster, None)
        if job and here and job["job_id"] == job_id:
            found.append((float(job["started_unix_s"]), path.parent))
    if not found:
        return None
    run_dir = max(found)[1]  # a cluster may count its jobs from 1 again
    config = str(run_files.CONFIG.path(run_dir))
    (train,) = cli.parse([TrainConfig], ["--config", config], prog="", description="")
    return Path(train.checkpoint_dir or run_files.CHECKPOINTS.path(run_dir)).absolute()
