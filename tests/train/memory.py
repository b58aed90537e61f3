"""Measure how much more memory this process needs for a while."""

import ctypes
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


def anonymous_bytes() -> int:
    """Return the size of this process's own memory, without the files that it has mapped."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("RssAnon:"))
    return 1024 * int(line.split()[1])


@contextmanager
def peak() -> Iterator[list[int]]:
    """Yield a list, which gets the largest increase of this process's memory in the block."""
    gc.collect()
    before = anonymous_bytes()
    most: list[int] = []
    is_over = threading.Event()

    def watch() -> None:
        highest = before
        while not is_over.is_set():
            highest = max(highest, anonymous_bytes())
            time.sleep(0.001)
        most.append(highest - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        is_over.set()
        thread.join()


def settled_peak() -> AbstractContextManager[list[int]]:
    """Return `peak()` after giving memory that earlier work has freed back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return peak()
