"""Write down which of our files a launcher and its agents enter: on PYTHONPATH, for `test_walk.py`.

A file is entered when one of its functions is called. What runs as a module is imported does not
count: its body, those of classes, and what they call. It is written down at once: a process may
become another.
"""

import os
import sys
import threading
from pathlib import Path

WALKERS = (
    "command.py",
    "submit.py",
    "launch/agent/__main__.py",
    "launch.leading.batch_job",
    "launch.slurm.task",
)
INSIDE = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
CO_OPTIMIZED = 1  # of functions: names of modules and classes are looked up
ROOT = Path(__file__).resolve().parents[3]
OURS = tuple(f"{ROOT / folder}/" for folder in ("configs", "launch", "muster", "train"))


def imports(frame) -> bool:
    """Whether what runs here does so for a module that is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__":
            return True
        frame = frame.f_back
    return False


def trace(folder: str) -> None:
    """Add each file that this process enters to a file of `folder`, which is named by its pid."""
    entered = set[str]()

    def note(frame, event, _):
        code = frame.f_code
        if event != "call" or code.co_filename in entered or not code.co_flags & CO_OPTIMIZED:
            return
        if code.co_filename.startswith(OURS) and code.co_name not in INSIDE and not imports(frame):
            entered.add(code.co_filename)
            with Path(folder, str(os.getpid())).open("a", encoding="utf-8") as file:
                file.write(f"{Path(code.co_filename).relative_to(ROOT)}\n")

    threading.setprofile(note)
    sys.setprofile(note)


if any(word.endswith(WALKERS) for word in sys.orig_argv):
    trace(os.environ["MUSTER_TEST_WALK"])
