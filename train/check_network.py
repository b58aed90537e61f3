"""One of the workers that measure the network between them; launch/doctor.py starts them.

Rank 0 writes `network.json` into the run folder; nothing is trained.
"""

import sys
from collections.abc import Sequence

from configs import cli
from configs.settings.train import ByHand, TrainConfig
from muster.run_files import NETWORK
from muster.writing import write_json
from train.distributed.exit_guard import ExitGuard
from train.distributed.world import World
from train.worker import as_worker, end_process


def main(argv: Sequence[str] | None = None) -> int:
    config, by_hand = cli.parse(
        [TrainConfig, ByHand],
        sys.argv[1:] if argv is None else argv,
        prog="python -m train.check_network",
        description="Measure the network, as one of the workers of a run.",
    )
    return as_worker(config, by_hand, _check)


def _check(config: TrainConfig, world: World, exit_guard: ExitGuard) -> None:
    from train.benchmarks import network
    from train.loop import run

    with run.joined(config, world, exit_guard) as (peers, run_dir):
        measured = network.measure(peers, config.timeout_s)
        if peers.world.is_main:
            write_json(NETWORK.path(run_dir), measured)


if __name__ == "__main__":
    cli.run(lambda: end_process(main()))
