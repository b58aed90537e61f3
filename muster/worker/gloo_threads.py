"""Let gloo's threads finish before the interpreter ends.

A thread of torch's gloo backend takes the interpreter for a moment after a collective, to let go of
Python objects that travelled with it. `destroy_process_group` joins these threads only if nothing
else holds the group, and a DDP model does. A thread that is still about to take the interpreter
while that ends aborts the process (SIGABRT, after the program's last line).

This file is loaded by its path. It needs the standard library alone, of Python 3.8 or newer.
"""

from __future__ import annotations

import time
from pathlib import Path

NAME = "pt_gloo_runloop\n"  # torch's name for them
LIMIT_S = 10.0  # a busy machine may give a thread no time; a program may go on with collectives
LOOK_S = 0.001
UNSEEN_S = 0.1
SHOWN = ("State:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")


def wait(tasks: Path = Path("/proc/self/task")) -> None:
    """Wait until all of them sleep, and have not run for a moment in which they could have.

    While this thread sleeps the interpreter is free: one that waits for it becomes runnable. Where
    the kernel does not show threads (macOS), they get a fixed time.
    """
    if not tasks.exists():
        time.sleep(UNSEEN_S)
    end = time.monotonic() + LIMIT_S
    before = looked_at(tasks)
    while before and time.monotonic() < end:
        time.sleep(LOOK_S)
        now = looked_at(tasks)
        if now == before and all("State:\tS" in thread for thread in now):
            return
        before = now


def looked_at(tasks: Path) -> list[str]:
    """State and number of context switches of each of the threads."""
    found = []
    for task in tasks.glob("*"):
        try:
            if (task / "comm").read_text(encoding="utf-8") == NAME:
                lines = (task / "status").read_text(encoding="utf-8").splitlines()
                found.append("\n".join(line for line in lines if line.startswith(SHOWN)))
        except OSError:  # it has ended
            continue
    return sorted(found)
