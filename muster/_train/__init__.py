"""The parts of `train/` that any program may use, without hiding names of the program.

A program may have its own `train.py` or `train/`. So our modules are imported as
`muster._train.sync` and so on. They import each other relatively, and nothing of `configs/` or
`launch/`.
"""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[2] / "train")]
