"""Turn batches into a better model; nothing in here depends on what started it."""

import sys

IS_MUSTER = True  # this package, not another program's `train`
if __name__ == "train" and "muster._train" in sys.modules:
    raise ImportError(
        "`train` of Muster's checkout is imported after `muster` has loaded parts of it under a "
        "name of its own, and one process cannot have both; import `train` first"
    )
