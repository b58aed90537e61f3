"""The parts of `train/` that any program may use, without hiding names of the program.

A program may have its own `train.py` or `train/`, so our modules are imported as
`muster._train.sync` and so on. They import each other relatively, and nothing from `configs/` or
`launch/`.
"""

from muster.checkout import CHECKOUT

__path__ = [str(CHECKOUT / "train")]
