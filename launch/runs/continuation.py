"""A run that goes on: with which settings, and from which checkpoint."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from configs import cli
from configs.settings.train import TrainConfig
from launch.spec import LaunchSpec
from muster import run_files
from muster.orderly_stop import NOTICE
from muster.writing import read_json


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
    """`spec`, to go on from the newest checkpoint, if its program knows how to be told."""
    if not spec.program.takes_resume:
        return spec
    module, flags = spec.program.argv[:2], spec.program.argv[2:]
    (train,) = cli.parse([TrainConfig], flags, prog="", description="")
    folder = train.checkpoint_dir or run_files.CHECKPOINTS.path(run_dir)
    train = continued(train, folder, [spec.run_id])
    return replace(spec, program=replace(spec.program, argv=(*module, *cli.to_argv(train))))


def has_checkpoint(folder: Path, run_ids: Collection[str]) -> bool:
    """Whether one of these runs has written a checkpoint into `folder` to its end."""
    for manifest in folder.glob("step_*/manifest.json"):
        state = read_json(manifest.with_name("state.json")) or {}  # it may be just being removed
        if state.get("run_id") in run_ids:
            return True
    return False


def stopped_for_notice(run_dir: Path) -> bool:
    """Whether the workers stopped, in order, since their time was up."""
    return (read_json(run_files.STOPPED.path(run_dir)) or {}).get("why") == NOTICE
