"""Train a model; nothing in this package depends on what started the process."""

import sys

IS_MUSTER = True  # this package, not another program's `train`
if __name__ == "train" and "muster._train" in sys.modules:
    raise ImportError(
        "`train` of Muster's checkout was imported after `muster`, which has already loaded "
        "parts of it under another name; import `train` before `muster`"
    )
