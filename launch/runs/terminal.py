"""What is printed waits in memory until it is taken: a slow terminal holds nobody up.

A pager that nobody reads on, a terminal that is stopped, a full pipe: whoever writes there waits
as long as they like. A launcher has more to do.
"""

import io
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from launch.runs.signals import on_stop

CHUNK_BYTES = 65_536


class Outlet:
    """The thread that writes, in order, what was printed to any of its streams."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, Iterable[bytes], int] | None] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self.waiting_bytes = 0
        self._closed: set[int] = set()  # descriptors to which nothing can be written any more
        self._broken: set[int] = set()  # those of them of which that is still to be said
        self._thread = threading.Thread(target=self._run, name="terminal", daemon=True)
        self._thread.start()

    def put(self, descriptor: int, data: bytes) -> None:
        """Have `data` written when its turn comes; it goes nowhere where nothing can be written.

        Raises:
            BrokenPipeError: whoever read what is shown has gone; said once.
        """
        if descriptor in self._broken:
            self._broken.remove(descriptor)
            raise BrokenPipeError
        if descriptor not in self._closed:
            with self._lock:
                self.waiting_bytes += len(data)
            self._queue.put((descriptor, [data], len(data)))

    def put_later(self, descriptor: int, parts: Iterable[bytes]) -> None:
        """Have `parts` made, and written, when their turn comes: they take no memory before."""
        self._queue.put((descriptor, parts, 0))

    def finish(self) -> None:
        """Stay until all is written, or somebody wants it to be over."""
        self._queue.put(None)
        enough = threading.Event()
        on_stop(lambda number, frame: enough.set())
        while self._thread.is_alive() and not enough.is_set():
            self._thread.join(0.1)  # a join without end would hold signals back

    def _run(self) -> None:
        # Signals are the main thread's, which a blocking call of its own must not hide them from.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while (item := self._queue.get()) is not None:
            descriptor, parts, size = item
            for part in parts:
                self._write(descriptor, memoryview(part))
                if descriptor in self._closed:
                    break
            with self._lock:
                self.waiting_bytes -= size

    def _write(self, descriptor: int, data: memoryview) -> None:
        while data and descriptor not in self._closed:
            try:
                data = data[os.write(descriptor, data[:CHUNK_BYTES]) :]
            except BlockingIOError:  # a terminal that somebody else has set not to wait
                threading.Event().wait(0.05)
            except OSError as error:  # a run outlives a closed terminal, or a full disk
                self._closed.add(descriptor)
                if isinstance(error, BrokenPipeError):
                    self._broken.add(descriptor)


class _Stream(io.RawIOBase):
    """A file whose writing never waits."""

    def __init__(self, outlet: Outlet, descriptor: int) -> None:
        self.outlet, self._descriptor = outlet, descriptor

    @property
    def waiting_bytes(self) -> int:
        return self.outlet.waiting_bytes

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data) -> int:  # type: ignore[no-untyped-def]  # any buffer
        whole = bytes(data)
        self.outlet.put(self._descriptor, whole)
        return len(whole)


@contextmanager
def unhurried() -> Iterator[None]:
    """Inside it, what is printed to stdout and stderr waits in memory; at its end for the reader.

    A signal to stop ends that last wait: what was not taken by then is lost.
    """
    before = sys.stdout, sys.stderr
    try:
        descriptors = [stream.fileno() for stream in before]
    except OSError:  # no files, but something of a test's
        yield
        return
    for stream in before:
        stream.flush()
    outlet = Outlet()
    own = sys.stdout, sys.stderr = [_text(outlet, descriptor) for descriptor in descriptors]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in own:
            with suppress(BrokenPipeError):
                stream.flush()
        outlet.finish()


def waiting_bytes() -> int:
    """What was printed and not taken yet; 0 where printing waits for the reader."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.waiting_bytes if isinstance(raw, _Stream) else 0


def write_later(stream: BinaryIO, parts: Iterable[bytes]) -> None:
    """Have `parts` made, and written, when the reader has taken what is before them."""
    stream.flush()
    raw = getattr(stream, "raw", None)
    if isinstance(raw, _Stream):
        raw.outlet.put_later(raw.fileno(), parts)
    else:
        stream.writelines(parts)


def _text(outlet: Outlet, descriptor: int) -> io.TextIOWrapper:
    buffered = io.BufferedWriter(_Stream(outlet, descriptor))
    return io.TextIOWrapper(buffered, encoding="utf-8", errors="replace", line_buffering=True)
