"""A run that goes on: with which settings, and from which checkpoint."""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from configs import cli
from configs.settings.train import TrainConfig
from launch.runs import run_record
from launch.runs.signals import NOTICE
from launch.spec import LaunchSpec
from muster import run_files


def continued(train: TrainConfig, folder: Path, run_ids: Collection[str]) -> TrainConfig:
    """The settings to go on from the newest checkpoint in `folder` that one of `run_ids` wrote.

    Without one they stay: the run goes on from what it was to go on from itself, if from anything,
    and not from what another run has left in the same folder.
    """
    if not has_checkpoint(folder, run_ids):
        return train
    return replace(
        train, resume="auto", reset_optimizer=False, reset_lr_scheduler=False, reset_data=False
    )


def with_flags(spec: LaunchSpec, run_dir: Path) -> LaunchSpec:
    """`spec`, to go on from the newest checkpoint."""
    (train,) = cli.parse([TrainConfig], spec.worker_argv, prog="", description="")
    folder = train.checkpoint_dir or run_files.CHECKPOINTS.path(run_dir)
    train = continued(train, folder, [spec.run_id])
    return replace(spec, worker_argv=tuple(cli.to_argv(train)))


def has_checkpoint(folder: Path, run_ids: Collection[str]) -> bool:
    """Whether one of these runs has written a checkpoint into `folder` to its end."""
    for manifest in folder.glob("step_*/manifest.json"):
        try:
            state = json.loads(manifest.with_name("state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # damaged, or just being removed
        if isinstance(state, dict) and state.get("run_id") in run_ids:
            return True
    return False


def stopped_for_notice(run_dir: Path) -> bool:
    """Whether the workers stopped, in order, since their time was up."""
    try:
        return bool(json.loads(run_files.STOPPED.path(run_dir).read_text())["why"] == NOTICE)
    except (OSError, ValueError, KeyError):
        return False


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
    run_dir = max(found)[1]  # a cluster may count its jobs from 1 again
    config = str(run_files.CONFIG.path(run_dir))
    (train,) = cli.parse([TrainConfig], ["--config", config], prog="", description="")
    folder = Path(train.checkpoint_dir or run_files.CHECKPOINTS.path(run_dir)).absolute()
    return folder, [path.name for _, path in found]
