"""`python -m train.worker` on a slow disk: `slow_disk_worker.py SECONDS FLAGS...`.

Each checkpoint and the trained model take SECONDS longer to write.
"""

import sys
import time
from collections.abc import Callable

from train.checkpoints import storage
from train.loop import export
from train.worker import end_process, main


def slow(write: Callable, seconds: float) -> Callable:  # type: ignore[type-arg]
    def write_slowly(*args, **kwargs):  # type: ignore[no-untyped-def]
        time.sleep(seconds)
        return write(*args, **kwargs)

    return write_slowly


if __name__ == "__main__":
    seconds = float(sys.argv[1])
    storage._write = slow(storage._write, seconds)
    export.save = slow(export.save, seconds)
    end_process(main(sys.argv[2:]))
