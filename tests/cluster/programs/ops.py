"""accelerate's tests of its collectives, on machines without GPUs, too.

By themselves they ask for `PartialState()`, which makes each process a run of its own there,
whoever starts it; `Accelerator()` reads ACCELERATE_USE_CPU.
"""

from accelerate import Accelerator
from accelerate.test_utils.scripts import test_ops

if __name__ == "__main__":
    Accelerator()
    test_ops.main()
