"""What every worker starts as: it sets itself up as a rank of the run, then becomes the program.

    python worker_main.py train.py [argument ...]      or a folder, or zipapp, with __main__.py
    python worker_main.py -m package.module [argument ...]
    python worker_main.py --exec COMMAND [argument ...]
    python worker_main.py --function FOLDER            the call that `muster.launch` wrote there
    python worker_main.py --fill-in ...                any of these, with placeholders in arguments

A script has its own folder first on the path, and its `sys.argv`, `__main__` and exit code are as
with plain `python`. This file needs only the standard library of Python 3.8 or newer, and imports
nothing from this repository by name: a user's `train.py` and `configs/` are found, not ours. The
modules that it has imported are not in `sys.modules` when the program begins: a user's `types.py`
is found, too. The only name that is added, last on the path, is `muster` (`muster/on_path/`).

The agent passes everything through the environment:

    MUSTER_RUN_DIR       output goes to workers/rank_*.{out,err} there, how it ended to exits/
    MUSTER_AGENT_PID     pid of the agent: when that process ends, so does this one
    MUSTER_CPUS          CPUs of each of the node's workers, if they are bound: 0,1;2,3

How a program may end, and what happens then; only the first record of `write_exit` is kept.

    its last line      write_exit(0); Python joins threads and calls what is registered with atexit
    an exception       end_with: write_exit(1) with the traceback, sys.excepthook, exit code 1
    sys.exit           end_with: write_exit(code), then as Python does
    os._exit           sudden_exit: write_exit(code); nothing else is called
    a signal           no record; the agent sees the signal

`wait_for_gloo` is registered with atexit before the program runs, so it is called after all
functions that the program registers. A process that a worker forks has no rank: `leave_rank` stops
its records.
"""

from __future__ import annotations

import sys

BEFORE = frozenset(sys.modules) - {"__future__"}  # what Python has imported on its own

import atexit
import builtins
import faulthandler
import importlib.machinery
import importlib.util
import json
import linecache
import os
import resource
import signal
import socket
import time
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

TYPE_CHECKING = False  # without `typing`, which takes long to import
if TYPE_CHECKING:
    from typing import Any, NoReturn

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
NEEDED_LATER = ("gloo_threads", "lost_peer", "process_group")  # beside this file
FILL_IN = "--fill-in"
FACE = Path(__file__).resolve().parent.parent  # the package `muster`
IS_SAFE_PATH = getattr(sys.flags, "safe_path", False)  # then the program's folder is not on it
RANK = int(os.environ.get("RANK", "0"))
run_dir: Path | None = None  # also None in a forked child, which does not report for its rank


def load_beside(name: str) -> Any:
    """Load a file beside this one by its path: `muster` may be another package in this program."""
    package = sys.modules.setdefault("_muster", types.ModuleType("_muster"))
    package.__path__ = [str(FACE / "worker")]
    return importlib.import_module(f"_muster.{name}")  # lost_peer.py finds the inspection here


process = load_beside("process")


def main() -> None:
    """Become the program that `sys.argv` names."""
    global run_dir
    words = sys.argv[1:]
    is_filled = words[0] == FILL_IN
    words = words[is_filled:]
    process.end_with_agent()
    keep_to_cpus()
    for number in process.NOTICE_SIGNALS:  # the program gets the default actions
        signal.signal(number, signal.SIG_DFL)
    if "MUSTER_RUN_DIR" in os.environ:
        run_dir = Path(os.environ["MUSTER_RUN_DIR"])
        redirect_output(run_dir)
    # a scheduler's names for these numbers come first; the agent has set all its other variables
    names = os.environ.get("MUSTER_TASK_VARIABLES", "").split()
    numbers = str(RANK), os.environ.get("LOCAL_RANK", "0")
    os.environ.update(zip(names, numbers))  # noqa: B905  (needs Python 3.10)
    if is_filled:
        try:
            words = load_beside("placeholders").filled(words, os.environ)
        except SystemExit as error:
            end_with(error)
    if words[0] == "--exec":
        run_command(words[1:])
    # after the program's own path, but before packages that are installed as links
    sys.path.append(str(FACE / "on_path"))
    faulthandler.enable()
    if "MUSTER_INSPECTION" in os.environ:  # the agent may ask what this process does
        load_beside("inspection").start(os.environ["MUSTER_INSPECTION"], RANK)
    atexit.register(wait_for_gloo)  # called after the program's functions
    os._exit = sudden_exit
    os.register_at_fork(after_in_child=leave_rank)
    for name in (*NEEDED_LATER, *(["function_call"] if words[0] == "--function" else [])):
        load_beside(name)
    forget_imports()
    try:
        if words[0] == "--function":  # on a node with its own disk, below its checkout
            load_beside("function_call").call(FACE.parent / words[1], run_dir, RANK)
        else:
            code = load_module(words[1], words[2:]) if words[0] == "-m" else load_script(words)
            exec(code, sys.modules["__main__"].__dict__)
    except BaseException as error:  # noqa: BLE001
        end_with(error)
    write_exit(0)


def keep_to_cpus() -> None:
    """Bind this process and its children to the CPUs that its agent has chosen, if any."""
    if "MUSTER_CPUS" not in os.environ:
        return
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    cpus = os.environ["MUSTER_CPUS"].split(";")[local_rank]
    try:
        os.sched_setaffinity(0, map(int, cpus.split(",")))
    except OSError as error:  # they were taken from this process meanwhile
        sys.stderr.write(f"note: not bound to CPUs {cpus}: {error.strerror}\n")


def forget_imports() -> None:
    """Forget the modules imported here, so that the program imports its own; see `BEFORE`."""
    for name in sys.modules.keys() - BEFORE:
        if name.partition(".")[0] != "_muster":
            del sys.modules[name]


def leave_rank() -> None:
    """Detach a forked process from the rank."""
    global run_dir
    run_dir = None


def wait_for_gloo() -> None:
    """Let gloo's threads finish: one that needs the GIL while the interpreter ends aborts it."""
    if "torch.distributed.distributed_c10d" in sys.modules:
        load_beside("gloo_threads").wait()


def load_script(words: list[str]) -> types.CodeType:
    """The code of a script, with the `__main__`, path and arguments that it expects."""
    path = words[0] if os.path.isabs(words[0]) else f"{Path.cwd()}/{words[0]}"  # noqa: PTH117
    sys.argv[:] = words
    spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
    if spec is not None and spec.origin is not None:  # it is a folder or zipapp
        sys.path[: not IS_SAFE_PATH] = [path]  # which python adds to a safe path, too
        importlib.import_module("runpy")  # as Python itself does first
        inside: Any = spec.loader
        new_main(spec.origin, spec, "", inside)
        code: types.CodeType = inside.get_code("__main__")
        return code
    if not IS_SAFE_PATH:
        sys.path[0] = str(Path(path).resolve().parent)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    new_main(path, None, None, loader)
    return loader.source_to_code(loader.get_data(path), path)


def load_module(name: str, arguments: list[str]) -> types.CodeType:
    """The code of `python -m name`, with the `__main__`, path and arguments that it expects."""
    if not IS_SAFE_PATH or Path.cwd() == FACE.parent:  # a module of ours is found in either case
        sys.path[: not IS_SAFE_PATH] = [str(Path.cwd())]
    importlib.import_module("runpy")  # as Python itself does first
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    loader: Any = spec.loader if spec is not None else None
    if spec is None or spec.origin is None or not hasattr(loader, "get_code"):
        sys.exit(f"error: no module named {name}, or it cannot be run with -m")
    sys.argv[:] = [spec.origin, *arguments]
    new_main(spec.origin, spec, spec.parent, loader)
    code: types.CodeType = loader.get_code(spec.name)
    return code


def new_main(path: str, spec: Any, package: str | None, loader: Any) -> None:
    """Set an empty `__main__`; it stays after the program's end, for threads that continue."""
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__spec__ = spec
    module.__package__ = package
    module.__loader__ = loader
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:  # multiprocessing was imported in advance
        sys.modules["__mp_main__"] = module


def run_command(argv: list[str]) -> NoReturn:
    """Run another command to its end, pass signals on to it, and end with its exit code."""
    import subprocess  # imported here: Python programs need it later, or never

    try:
        command = subprocess.Popen(argv, preexec_fn=process.end_with_parent)  # noqa: PLW1509 (there are no threads)
    except OSError as error:
        why = f"{argv[0]}: {error.strerror}"
        write_exit(process.NOT_FOUND, why)
        sys.stderr.write(f"error: {why}\n")
        sys.exit(process.NOT_FOUND)
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: command.send_signal(number))
    code = command.wait()
    how = f" was killed by {process.signal_name(-code)}" if code < 0 else f": exit code {code}"
    code = 128 - code if code < 0 else code
    write_exit(code, argv[0] + how)
    sys.exit(code)


def end_with(error: BaseException) -> NoReturn:
    """Record what ended the program, and end as Python would."""
    code = exit_code(error) if isinstance(error, SystemExit) else 1
    if isinstance(error, SystemExit):
        text = error.code if isinstance(error.code, str) else f"exit code {code}"
        write_exit(code, note_stop(error) if code == process.STOPPED else text)
        raise error
    frame = error.__traceback__
    while frame is not None and is_ours(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    BaseException.with_traceback(error, frame)  # works even if its attributes cannot be set
    text, lines = described(error)
    show = sys.excepthook
    lost_peer = load_beside("lost_peer")
    if isinstance(error, RuntimeError):
        lost_peer.report_lost_peer(text, frame)
    if run_dir is not None and lost_peer.is_lost_peer(text):  # the cause is on another rank
        show = lost_peer.print_as_consequence
    is_signal = isinstance(error, KeyboardInterrupt)
    code, cause = (128 + signal.SIGINT, "signal") if is_signal else (1, "crash")
    write_exit(code, text, cause, lines)
    show(type(error), error, frame)
    sys.exit(code)


def described(error: BaseException) -> tuple[str, str]:
    """One line about an error, and its traceback; even the text of a user's exception may fail."""
    kind = type(error).__name__
    generated = getattr(sys.modules.get("linecache"), "cache", None)  # the program's own module
    if isinstance(generated, dict):
        linecache.cache.update(generated)
    try:
        report = traceback.TracebackException(type(error), error, error.__traceback__)
        return f"{kind}: {' '.join(str(report).split())}", "".join(report.format())
    except Exception:  # noqa: BLE001 (the user's own code)
        return kind, "".join(traceback.format_tb(error.__traceback__)) + kind


def note_stop(error: SystemExit) -> str:
    """Record, once for all ranks, that the run can be continued, and why it was stopped."""
    request = getattr(sys.modules.get("muster.orderly_stop"), "request", None)
    # an error of checkpoints may come from a request to another rank
    why = getattr(error, "why", "") or getattr(request, "why", "") or "by itself"
    checkpoints = os.environ.get("MUSTER_CHECKPOINTS")
    if run_dir is not None and RANK == 0:
        write_json(run_dir / "stopped.json", {"why": why, "checkpoints": checkpoints})
    return f"stopped cleanly ({why}); continue with the same command"


def sudden_exit(status: int, leave: Callable[[int], NoReturn] = os._exit) -> NoReturn:
    """Write the record of how the program ended, then end as `os._exit` does."""
    write_exit(status & 0xFF, f"exit code {status & 0xFF}")
    leave(status)


def is_ours(filename: str) -> bool:
    """Whether a frame of a traceback is in a file of this folder, or in Python's import code."""
    beside = filename.rpartition("/")[0] == __file__.rpartition("/")[0]
    return beside or filename.startswith("<frozen importlib")


def exit_code(error: SystemExit) -> int:
    """The exit code of a process that `error` ends."""
    return (error.code or 0) & 0xFF if isinstance(error.code, (int, type(None))) else 1


def write_exit(code: int, message: str = "", cause: str = "", lines: str = "") -> None:
    """Write exits/rank_*.json, to tell a failure from its consequences; the first record stays."""
    if run_dir is None or (path := end_record(run_dir)).exists():
        return
    record = {
        "rank": RANK,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time_unix_s": time.time(),
        "code": code,
        "cause": cause or {0: "done", process.STOPPED: "stopped"}.get(code, "exit"),
        "message": message,
        "traceback": lines,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "missing": [],
        "process_group": has_process_group() if code == 0 else None,
    }
    write_json(path, record)


def has_process_group() -> bool | None:
    """Whether this process has made a process group of torch; None if that is not known."""
    try:
        return load_beside("process_group").has_connected()  # type: ignore[no-any-return]
    except Exception:  # noqa: BLE001 (the record is written, whatever the program did to torch)
        return None


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write one file, so that a reader sees all of it or none; report a failure in one line."""
    try:
        process.write_whole(path, json.dumps(value).encode())
    except OSError as error:
        with suppress(OSError):  # it goes to a file, perhaps on the same full disk
            sys.stderr.write(f"error: {socket.gethostname()}: {path}: {error.strerror}\n")
            sys.stderr.flush()


def end_record(run_dir: Path) -> Path:
    """Where this rank records how it ended."""
    return run_dir / "exits" / f"rank_{RANK:05d}.json"


def redirect_output(run_dir: Path) -> None:
    """Redirect all output, including that of libraries, to the files of this rank."""
    folder = run_dir / "workers"
    folder.mkdir(parents=True, exist_ok=True)
    for descriptor, ending in ((1, "out"), (2, "err")):
        path = folder / f"rank_{RANK:05d}.{ending}"
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)


if __name__ == "__main__":
    main()
