"""How a command starts: a module, as `python -m` runs it, or a script of this checkout.

    python run_module.py torch.distributed.run [argument ...]

`-m` looks for modules first in the current folder, where a user's `yaml.py` or `logging.py` would
be taken for the library; with PYTHONSAFEPATH it does not look there at all. Here a module of this
checkout is found in the checkout, and any other module among Python's libraries.

Modules that are not ours are torchrun, or start it. Here torchrun ends with its agent, if it has
one. It never removes its temporary folders, so its agent chooses the folder for them, and removes
it. For each of its events torchrun looks up this machine's full name, only to log it. If DNS does
not answer, that takes seconds each time (see https://github.com/pytorch/pytorch/issues/150532). So
here that call returns the machine's own name.

It needs only the standard library of Python 3.8 or newer.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

MUSTER = Path(__file__).resolve().parent
OURS = ("launch", "muster", "train")
HAS_OWN_FOLDER = not getattr(sys.flags, "safe_path", False)  # the script's folder is first on path


def main() -> None:
    """Run the module that the first argument names, in place of this script."""
    del sys.argv[0]
    run = partial(runpy.run_module, sys.argv[0], run_name="__main__", alter_sys=True)
    if sys.argv[0].partition(".")[0] in OURS:
        sys.path[:HAS_OWN_FOLDER] = [str(MUSTER.parent)]
        begin()
        _with_packages(run)
    else:
        del sys.path[:HAS_OWN_FOLDER]
        _prepare_torchrun()
        run()


def start(script: str, function: str = "main") -> None:
    """Run a script of this checkout, which calls this with its `__file__`.

    The script is imported as a module. On the path the checkout replaces the script's folder, in
    which a file could hide a library. The process ends with the exit code of `function`.
    """
    sys.path[:HAS_OWN_FOLDER] = [str(MUSTER.parent)]
    begin()
    from muster import errors

    path = Path(script).resolve().relative_to(MUSTER.parent).with_suffix("")
    module = _with_packages(partial(importlib.import_module, ".".join(path.parts)))
    errors.run(getattr(module, function))


def _with_packages(load: Callable[[], object]) -> object:
    """Call `load`; if it needs a package that this Python lacks, print one line and exit.

    Raises:
        SystemExit: this Python lacks a package that Muster needs.
    """
    from muster import errors

    try:
        return load()
    except ModuleNotFoundError as error:
        sys.exit(errors.without_package(error))


def begin() -> None:
    """Until `errors.run`, make Ctrl-C end this process without a traceback of imports.

    PYTHONPATH may have modules for the user's program, such as a yaml.py. From here on they do not
    hide modules of our environment; workers inherit the variable unchanged.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _put_own_packages_first()


def _put_own_packages_first() -> None:
    """Move the folders of PYTHONPATH, except this checkout, to the end of the module search path.

    So their modules for a user's program do not hide ours. Our own packages may be there, too.
    """
    if sys.flags.ignore_environment or not os.environ.get("PYTHONPATH"):
        return
    import sysconfig  # only here, since it is slow to import

    folders = {os.path.abspath(name) for name in os.environ["PYTHONPATH"].split(os.pathsep)}  # noqa: PTH100 (as Python does)
    folders -= {str(MUSTER.parent), *sysconfig.get_paths().values()}
    sys.path.sort(key=lambda name: name in folders)


def _prepare_torchrun() -> None:
    """Do for torchrun what it does not do itself; see the text at the top of this file."""
    import socket
    import tempfile

    process = runpy.run_path(str(MUSTER / "worker" / "process.py"))  # hides no user's `muster`
    if process["AGENT_PID"] in os.environ:  # a pasted line of a dry run may outlive its shell
        process["end_with_agent"]()
    tempfile.tempdir = os.environ.get("MUSTER_SCRATCH")  # not TMPDIR, which workers inherit
    socket.getfqdn = lambda name="": name or socket.gethostname()


if __name__ == "__main__":
    main()
