"""Write down which of our functions this process calls, as FILE:LINE; for a folder on PYTHONPATH.

Code that runs while a module is imported does not count: the module's body, the bodies of classes,
and what they call. A function is written down immediately, because a process may exec another
program. On the signal `ANEW`, a process starts again with a new file.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from types import CodeType

RUN = ("__main__", "__channelexec__")  # the latter is execnet's, on which xdist is built
INSIDE = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
ANEW = signal.SIGRTMIN + 5
CO_OPTIMIZED = 1  # set for functions; modules and classes look names up
ROOT = Path(__file__).resolve().parents[3]
OURS = tuple(f"{ROOT / folder}/" for folder in ("configs", "launch", "muster", "train"))


def imports(frame) -> bool:
    """Whether this frame runs because a module is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] not in RUN:
            return True
        frame = frame.f_back
    return False


def trace(folder: str) -> None:
    """Add the functions that this process calls to a file in `folder` named after its pid."""
    called = set[CodeType]()

    def place() -> Path:
        return Path(folder, str(os.getpid()))

    def enter(frame, event, _) -> None:
        code = frame.f_code
        if event != "call" or code in called or not code.co_flags & CO_OPTIMIZED:
            return
        if code.co_filename.startswith(OURS) and code.co_name not in INSIDE and not imports(frame):
            called.add(code)
            # where its definition begins, including its decorators
            line = f"{code.co_filename.removeprefix(f'{ROOT}/')}:{code.co_firstlineno}\n"
            with place().open("a", encoding="utf-8") as file:
                file.write(line)

    def begin_anew(*_: object) -> None:
        place().rename(f"{place()}.before")
        called.clear()

    signal.signal(ANEW, begin_anew)
    threading.setprofile(enter)
    sys.setprofile(enter)


if "MUSTER_TEST_WALK" in os.environ:
    trace(os.environ["MUSTER_TEST_WALK"])
