"""The trainer's worker, whose last rank kills itself after a number of steps: KILL_AFTER.

python -m tests.gpu.programs.killed_worker --task rte …, with the worker's own flags.
"""

import os
import signal
import sys
from typing import Any, NoReturn

VARIABLE = "KILL_AFTER"


def main() -> NoReturn:
    from train import worker

    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        kill_after(int(os.environ[VARIABLE]))
    worker.end_process(worker.main(sys.argv[1:]))


def kill_after(steps: int) -> None:
    """Have the kernel end this process in this step of its optimizer."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    begun = []

    def count(*_: Any) -> None:
        begun.append(1)
        if len(begun) == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_pre_hook(count)


if __name__ == "__main__":
    main()
