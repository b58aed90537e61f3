"""Where the folders of the checkout are: `launch/`, `configs/`, `train/`, `slurm/` and `muster/`.

An installation from a wheel has them, as they stand in a checkout, below its package `muster`, where
they hide no `train.py` or `configs/` of a user's. A checkout, and an editable installation of one,
has them beside `muster/`.

It needs the standard library alone, of Python 3.8 or newer.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "_checkout"
CHECKOUT = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent
