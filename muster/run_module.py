"""How a command starts: a module, as `python -m` runs it, or a script of this checkout.

    python run_module.py torch.distributed.run [argument ...]

`-m` finds modules in the folder that it is started in first, where a `yaml.py` or `logging.py` of
the user's would be taken for the library's; and where PYTHONSAFEPATH is set, none there. A module
of this checkout is found in the checkout, all others where Python has its libraries.

All others are torchrun, or start it. It ends with its agent, if it has one. It never removes its
temporary folders: an agent says where they may be, and removes that. And for each of its events it
asks for this machine's full name, which it only logs: where the server of names is silent, that
takes seconds each time. So the machine's own name is given.

It needs the standard library alone, of Python 3.8 or newer.
"""

import importlib
import importlib.util
import os
import runpy
import signal
import sys
import types
from pathlib import Path

MUSTER = Path(__file__).resolve().parent
OURS = ("launch", "muster", "train")
NEEDED = ("yaml", "rich")  # every command imports them first; a bare Python does not have them
HAS_OWN_FOLDER = not getattr(sys.flags, "safe_path", False)  # of its script, first on the path


def main() -> None:
    """Run the module that the first argument names, in place of this script."""
    del sys.argv[0]
    package = sys.argv[0].partition(".")[0]
    if package in OURS:
        sys.path[:HAS_OWN_FOLDER] = [str(MUSTER.parent)]
        begin(needs_base=package != "muster")  # that needs the standard library alone
    else:
        del sys.path[:HAS_OWN_FOLDER]
        _be_torchrun()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def start(module: str, function: str = "main") -> None:
    """Run a script of the checkout, which has put that first on the path: `start("launch.submit")`.

    It is imported as `module`; the process ends with the exit code of its `function`.
    """
    del sys.path[1 : 1 + HAS_OWN_FOLDER]  # a file in the script's own folder could hide a library
    begin()
    from muster import errors

    errors.run(getattr(importlib.import_module(module), function))


def begin(*, needs_base: bool = True) -> None:
    """Make Ctrl-C end this process without a traceback of imports, until `errors.run`.

    From here on a module that PYTHONPATH has for the user's program, a yaml.py say, hides none of
    those that our environment has; workers inherit the variable as it is.

    `needs_base`: in a Python without our packages, one line says what is missing.

    Raises:
        SystemExit: it is such a Python.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _put_own_packages_first()
    missing = [name for name in NEEDED if needs_base and importlib.util.find_spec(name) is None]
    if missing:
        from muster import errors, extras  # only where something is missing

        sys.exit(errors.report(extras.without_base(missing[0]), errors.UsageError.exit_code))


def _put_own_packages_first() -> None:
    """Put the folders of PYTHONPATH last on the path of modules, but for this checkout.

    So what they have for a user's program hides nothing of ours; our own packages may be there.
    """
    if sys.flags.ignore_environment or not os.environ.get("PYTHONPATH"):
        return
    import sysconfig  # only here, since it is slow to import

    folders = {os.path.abspath(name) for name in os.environ["PYTHONPATH"].split(os.pathsep)}  # noqa: PTH100 (as Python does)
    folders -= {str(MUSTER.parent), *sysconfig.get_paths().values()}
    sys.path.sort(key=lambda name: name in folders)


def _be_torchrun() -> None:
    """Do for torchrun what it does not do itself; see above."""
    import socket
    import tempfile

    package = sys.modules.setdefault("_muster", types.ModuleType("_muster"))
    package.__path__ = [str(MUSTER / "worker")]  # `muster` may be another package's name there
    process = importlib.import_module("_muster.process")
    if process.AGENT in os.environ:  # a pasted line of a dry run may outlive its shell
        process.end_with_agent()
    tempfile.tempdir = os.environ.get("MUSTER_SCRATCH")  # not TMPDIR, which workers inherit
    socket.getfqdn = lambda name="": name or socket.gethostname()


if __name__ == "__main__":
    main()
