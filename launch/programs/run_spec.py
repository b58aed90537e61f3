"""What the launch's settings say of a run, whatever its program is."""

import shutil
import sys

from configs.settings.launch import LaunchConfig
from configs.settings.train import TrainConfig
from launch.spec import LaunchSpec, Program


def run_spec(
    program: Program, run: TrainConfig, launch: LaunchConfig, *, resumed: bool = False
) -> LaunchSpec:
    """The run of `program`; of `run` only what holds for any program is read."""
    assert run.run_id is not None
    shows_bar = sys.stdout.isatty() and not run.quiet and not launch.detach
    env = {"MUSTER_TTY": str(shutil.get_terminal_size().columns)} if shows_bar else {}
    if run.checkpoint_dir is not None:
        env["MUSTER_CHECKPOINTS"] = str(run.checkpoint_dir)
    return LaunchSpec(
        run_id=run.run_id,
        run_dir=(run.logs_root / run.run_id).absolute(),
        program=program,
        env=env,
        workers=launch.workers,
        preload=launch.preload or "",
        join_s=run.join_timeout_s,
        stop_grace_s=launch.stop_grace_s,
        hang_after_s=launch.hang_after_s,
        on_hang=launch.on_hang,
        max_restarts=launch.max_restarts,
        least_nodes=launch.least_nodes,
        overwrite=run.overwrite,
        resumed=resumed,
        ports=launch.ports,
        quiet=run.quiet,
    )
