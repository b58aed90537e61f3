"""Write down which of our files a command and its agents enter: on PYTHONPATH, for `test_walk.py`.

A file is entered when one of its functions is called. What runs as a module is imported does not
count: its body, those of classes, and what they call. It is written down at once: a process may
become another. At the signal `ANEW` a process begins anew, to another file. By `tracer`, tests of
train trace a part of one process. With `FUNCTIONS` in the environment every process of the run,
its workers among them, writes down each function instead, as FILE:LINE.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType

WALKERS = (
    "command.py",
    "submit.py",
    "jobs.py",
    "launch.agent",
    "launch.leading.batch_job",
    "launch.in_job.task",
)
RUN = ("__main__", "__channelexec__")  # the latter as execnet does, which xdist stands on
INSIDE = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
ANEW = signal.SIGRTMIN + 5
FUNCTIONS = "MUSTER_TEST_WALK_FUNCTIONS"
CO_OPTIMIZED = 1  # of functions: names of modules and classes are looked up
ROOT = Path(__file__).resolve().parents[3]
OURS = tuple(f"{ROOT / folder}/" for folder in ("configs", "launch", "muster", "train"))


def imports(frame) -> bool:
    """Whether what runs here does so for a module that is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] not in RUN:
            return True
        frame = frame.f_back
    return False


def file_of(code: CodeType) -> str:
    return code.co_filename.removeprefix(f"{ROOT}/")


def function_of(code: CodeType) -> str:
    """FILE:LINE, where its definition begins, with its decorators."""
    return f"{file_of(code)}:{code.co_firstlineno}"


def tracer(
    note: Callable[[str], object],
    entered: set[object] | None = None,
    name_of: Callable[[CodeType], str] = file_of,
) -> Callable[..., None]:
    """For `sys.setprofile`: `note` is called with each name that is not yet in `entered`, once."""
    entered = set() if entered is None else entered

    def enter(frame, event, _):
        code = frame.f_code
        if event != "call" or code in entered or not code.co_flags & CO_OPTIMIZED:
            return
        if code.co_filename.startswith(OURS) and code.co_name not in INSIDE and not imports(frame):
            entered.add(code)
            if (name := name_of(code)) not in entered:
                entered.add(name)
                note(name)

    return enter


def trace(folder: str) -> None:
    """Add what this process enters to a file of `folder`, which is named by its pid."""
    entered = set[object]()

    def place() -> Path:
        return Path(folder, str(os.getpid()))

    def note(name: str) -> None:
        with place().open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")

    def begin_anew(*_: object) -> None:
        place().rename(f"{place()}.before")
        entered.clear()

    signal.signal(ANEW, begin_anew)
    enter = tracer(note, entered, function_of if FUNCTIONS in os.environ else file_of)
    threading.setprofile(enter)
    sys.setprofile(enter)


if FUNCTIONS in os.environ or any(word.endswith(WALKERS) for word in sys.orig_argv):
    trace(os.environ["MUSTER_TEST_WALK"])
