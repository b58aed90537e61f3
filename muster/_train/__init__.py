"""The parts of `train/` that any program may use, under a name that hides none of the program's.

A program has a `train.py` or a `train/` of its own; so ours are found here, as `muster._train.sync`
and so on. They import each other relatively, and nothing of `configs/` or `launch/`.
"""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[2] / "train")]
