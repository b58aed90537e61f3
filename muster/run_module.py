"""Run a module as `python -m` does, from any folder.

python run_module.py torch.distributed.run [argument ...]

`-m` looks first in the current folder, where a `yaml.py` or `logging.py` of the user would replace
the library's. With PYTHONSAFEPATH it finds no module of the checkout. Here a module of this
checkout is found in the checkout, and all others in Python's libraries.

It needs the standard library alone, of Python 3.8 or newer.
"""

import runpy
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
OURS = ("launch", "train")


def main() -> None:
    """Run the module that the first argument names, in place of this script."""
    del sys.argv[0]
    is_ours = sys.argv[0].partition(".")[0] in OURS
    has_own_folder = not getattr(sys.flags, "safe_path", False)
    sys.path[:has_own_folder] = [str(CHECKOUT)] if is_ours else []
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
