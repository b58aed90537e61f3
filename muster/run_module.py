"""Run a module as `python -m` does, wherever this is started.

python run_module.py torch.distributed.run [argument ...]

`-m` finds modules in the folder that it is started in first, where a `yaml.py` or `logging.py` of
the user's would be taken for the library's; and where PYTHONSAFEPATH is set, none there. A module
of this checkout is found in the checkout, all others where Python has its libraries.

torchrun never removes its temporary folders: an agent says where they may be, and removes that. And
for each of its events it asks for this machine's full name, which it only logs: where the server of
names is silent, that takes seconds each time. So the machine's own name is given.

It needs the standard library alone, of Python 3.8 or newer.
"""

import os
import runpy
import socket
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
OURS = ("launch", "muster", "train")


def main() -> None:
    """Run the module that the first argument names, in place of this script."""
    del sys.argv[0]
    is_ours = sys.argv[0].partition(".")[0] in OURS
    has_own_folder = not getattr(sys.flags, "safe_path", False)
    sys.path[:has_own_folder] = [str(CHECKOUT)] if is_ours else []
    tempfile.tempdir = os.environ.get("MUSTER_SCRATCH")  # not TMPDIR, which workers inherit
    if is_ours:
        from muster import errors

        errors.own_packages_first()
        if not sys.argv[0].startswith("muster."):  # these need the standard library alone
            errors.require_base()
    else:
        socket.getfqdn = lambda name="": name or socket.gethostname()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
