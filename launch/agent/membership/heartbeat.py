"""Say every second, from a thread of its own, that this process lives.

A slow disk, a slow terminal or a slow file server hold up the thread that waits for them. They are
no reason to take a process, or its node, for dead.
"""

import signal
import threading

from launch.nodes.channel import Channel

BEAT_S = 1.0
# Of one that is not heard for so long nothing more is expected: on a link that is down nothing
# says so.
SILENT_S = 15.0


class Heartbeat:
    """The thread that beats on each of the channels that it was given, until they end."""

    def __init__(self) -> None:
        self._wires: list[Channel] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, channel: Channel) -> None:
        """Beat on this wire, too, from now on."""
        self._wires = [*self._wires, channel]  # a new list: the thread may be reading the other
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Beat no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        # Signals are the main thread's, which a blocking call of its own must not hide them from.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            for channel in self._wires:
                channel.beat()
            if self._over.wait(BEAT_S):
                return
