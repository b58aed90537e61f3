"""What a run's workers execute, from the settings of a launch."""

from configs import cli
from configs.settings.bench import BenchConfig
from configs.settings.launch import LaunchConfig
from configs.settings.train import TrainConfig
from launch.spec import Program


def own(launch: LaunchConfig, train: TrainConfig, bench: BenchConfig) -> Program:
    """A program of train/, with the flags that make its settings again."""
    flags = cli.program_argv(launch.program, train, bench)
    return Program.module(
        f"train.{launch.program}", *flags, takes_resume=launch.program == "worker"
    )
