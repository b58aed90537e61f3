"""Write down which of our functions a process calls: on PYTHONPATH of a run's processes.

Each is written down at once, as FILE:LINE, since a process may become another. What runs as a
module is imported does not count: its body, those of classes, and what they call. At the signal
`ANEW` a process begins again, with another file. Tests call `tracer` to trace a part of one
process, by file.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType

RUN = ("__main__", "__channelexec__")  # the latter as execnet does, which xdist stands on
INSIDE = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
ANEW = signal.SIGRTMIN + 5
NOTES = "MUSTER_TEST_WALK"  # the variable with the folder for what processes write down
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
    enter = tracer(note, entered, function_of)
    threading.setprofile(enter)
    sys.setprofile(enter)


if NOTES in os.environ:
    trace(os.environ[NOTES])
