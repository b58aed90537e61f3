"""Run the CS744 course's own command line, unchanged, on the same trainer as all other runs.

python train/main.py --master-ip 10.10.1.1 --num-nodes 4 --rank 0
"""

if __name__ == "__main__":  # run as a script: our modules are not on its path yet
    from pathlib import Path
    from runpy import run_path

    run_path(f"{Path(__file__).resolve().parents[1]}/muster/run_module.py")["start"](
        __file__, "main_process"
    )

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from configs import cli
from configs.settings.train import ByHand, TrainConfig
from muster.errors import refuse
from train import worker
from train.command_lines import translation

DESCRIPTION = (
    "Train VGG on CIFAR-10 with the command line of the CS744 course. All flags of train.worker "
    "are also accepted, as are other names in the course's scripts: -M and --master-addr for "
    "--master-ip; -N, --nnodes and --num-nodes for --world-size; -R, --node-rank and "
    "--local_rank for --rank. Note that --batch-size is the total of all nodes: with the "
    "course's 256, each of four nodes computes 64 samples per step."
)

# The names of these flags in the scripts of the course's students.
ALSO = {
    "-M": "--master-ip", "--master-addr": "--master-ip", "-N": "--num-nodes",
    "--nnodes": "--num-nodes", "-R": "--rank", "--node-rank": "--rank",
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    config, by_hand = parse(sys.argv[1:] if argv is None else argv, os.environ)
    return worker.train(config, by_hand)


def main_process() -> NoReturn:
    """Run `main` as the whole process."""
    worker.end_process(main())


def parse(argv: Sequence[str], env: Mapping[str, str]) -> tuple[TrainConfig, ByHand]:
    """Parse `argv`; the defaults are the course's task and, for one process, mode single.

    Raises:
        UsageError: a flag is wrong; the message lists all problems.
    """
    page = {"prog": "python train/main.py", "description": DESCRIPTION}
    dashed = cli.dashed_flags(argv)
    refuse(translation.two_values(dashed, {**ALSO, "--local-rank": "--rank"}))
    pairs = [word.partition("=") for word in dashed]
    words = [ALSO.get(flag, flag) + equals + text for flag, equals, text in pairs]
    config, by_hand, _ = translation.worker_settings(["--task=cs744", *words], env, {}, **page)
    return config, by_hand
