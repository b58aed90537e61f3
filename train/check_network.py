"""Measure the network between workers, as one of them; launch/doctor.py starts them.

Rank 0 writes `network.json` into the run folder; nothing is trained.
"""

from collections.abc import Sequence

from configs import cli
from configs.settings.train import TrainConfig
from muster.run_files import NETWORK
from muster.writing import write_json
from train.distributed.exit_guard import ExitGuard
from train.distributed.world import World
from train.worker import command, end_process


def main(argv: Sequence[str] | None = None) -> int:
    what = "Measure the network, as one of the workers of a run."
    return command(argv, "python -m train.check_network", what, _check)


def _check(config: TrainConfig, world: World, exit_guard: ExitGuard) -> None:
    from train.benchmarks import network
    from train.loop import run

    with run.join_workers(config, world, exit_guard) as (peers, run_dir):
        measured = network.measure(peers, config.timeout_s)
        if peers.world.is_main:
            write_json(NETWORK.path(run_dir), measured)


if __name__ == "__main__":
    cli.run(lambda: end_process(main()))
