"""Make a worker of any program fail as a file `fault_RANK` beside its run folder says.

Python imports this file at its start, from the environment that the tests of faults make.
"""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

LOOK_S = 0.1
AGAIN_S = 30  # a worker ends long before


class EmptySample(ValueError):
    def __init__(self):
        super().__init__("sample 17 is empty")


def raised_in_main(error):
    """Raise `error` in the main thread, as if the program's own code had raised it.

    Python ignores an exception that reaches a destructor or a callback, so it is raised again.
    """
    main = ctypes.c_ulong(threading.main_thread().ident)
    while True:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(error))
        time.sleep(AGAIN_S)


def eat():
    eaten = []
    while True:
        eaten.append(b"1" * 8_000_000)


FAULTS = {
    "raise": lambda: raised_in_main(EmptySample),
    "abort": os.abort,
    "eat": eat,
}


def watch(fault):
    while not fault.exists() or not (how := fault.read_text()):
        time.sleep(LOOK_S)
    fault.unlink()  # once is enough
    FAULTS[how]()


if any(word.endswith("worker_main.py") for word in sys.orig_argv) and "RANK" in os.environ:
    beside = Path(os.environ["MUSTER_RUN_DIR"]).parent
    path = beside / f"fault_{os.environ['RANK']}"
    threading.Thread(target=watch, args=(path,), daemon=True).start()
