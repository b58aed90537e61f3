"""Let gloo's threads finish before the interpreter ends.

A thread of torch's gloo backend briefly takes the GIL after a collective, to free its Python
objects. `destroy_process_group` joins these threads only if nothing else refers to the group, but a
DDP model does. A thread that takes the GIL while the interpreter ends aborts the process (SIGABRT,
after the program's last line): https://github.com/pytorch/pytorch/pull/179291.

This file is loaded by its path. It needs only the standard library of Python 3.8 or newer.
"""

from __future__ import annotations

import time
from pathlib import Path

THREAD_NAME = "pt_gloo_runloop\n"  # torch's name for these threads
LIMIT_S = 10.0  # a busy machine may not run a thread; a program may continue with collectives
LOOK_S = 0.001
UNSEEN_S = 0.1  # for threads that the kernel does not show
FIELDS = ("State:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")


def wait(tasks: Path = Path("/proc/self/task")) -> None:
    """Wait until all these threads sleep, and have not run for a moment in which they could.

    While this thread sleeps, the GIL is free: a thread that waits for it becomes runnable. If the
    kernel does not show threads (macOS), they get a fixed time.
    """
    if not tasks.exists():
        time.sleep(UNSEEN_S)
    end = time.monotonic() + LIMIT_S
    before = thread_states(tasks)
    while before and time.monotonic() < end:
        time.sleep(LOOK_S)
        now = thread_states(tasks)
        if now == before and all("State:\tS" in thread for thread in now):
            return
        before = now


def thread_states(tasks: Path) -> list[str]:
    """State and number of context switches of each of the threads."""
    states = []
    for task in tasks.glob("*"):
        try:
            if (task / "comm").read_text(encoding="utf-8") == THREAD_NAME:
                lines = (task / "status").read_text(encoding="utf-8").splitlines()
                states.append("\n".join(line for line in lines if line.startswith(FIELDS)))
        except OSError:  # the thread has ended
            continue
    return sorted(states)
