"""A program that is asked to stop may end cleanly: with a checkpoint, and exit code 75.

A program that calls `on_stop`, or `stopping()` once at its start, gets `--stop-grace-s` seconds
after SIGTERM, as our trainer does; any other program is ended at once. A run in which all workers
exit with 75 is requeued, or can be started again. It then finds its checkpoints in the same folder:
`MUSTER_CHECKPOINTS`.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from muster.arguments import function
from muster.errors import STOPPED, MusterError, refuse
from muster.worker.process import NOTICE_SIGNALS as NOTICE_SIGNALS
from muster.worker.process import signal_name

# Workers that can stop cleanly create a file here, named by their pid. The agent writes the reason
# into it.
FOLDER = "MUSTER_STOPPABLE"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # with them a user stops a run
NOTICE = "notice"  # the reason that workers get when a scheduler has announced the end
# A leader stops its run at these signals, too, unless it uses them otherwise. Their default action
# would end it without a message.
ALSO_STOP = (signal.SIGQUIT, *NOTICE_SIGNALS)


class StopRequest:
    """Whether this process was asked to stop, why, and what it then does."""

    def __init__(self) -> None:
        self.why = ""  # such as SIGTERM, or notice: the time limit is near
        self._owner: int | None = None  # the process that listens; not its forked children
        self.saves: list[Callable[[], object]] = []

    def listen(self) -> None:
        """Treat SIGTERM as a request from now on.

        Raises:
            MusterError: outside the main thread, where Python handles no signals.
        """
        if self._owner == os.getpid():
            return
        if threading.current_thread() is not threading.main_thread():
            raise MusterError(
                "muster.on_stop and the first muster.stopping() take a signal, which Python allows "
                "in the main thread only; call them there, at the start"
            )
        self._owner = os.getpid()
        self.why = ""
        signal.signal(signal.SIGTERM, self._handle)
        if folder := os.environ.get(FOLDER):
            leave_notices_to_the_agent()
            Path(folder, str(self._owner)).touch()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:  # a forked data loader has inherited this
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.why:  # agents repeat the signal
            return
        self.why = self._reason() or signal_name(number)
        if self.saves:
            for save in self.saves:
                save()
            sys.exit(STOPPED)

    def _reason(self) -> str:
        path = Path(os.environ.get(FOLDER, ""), str(self._owner))
        return path.read_text(encoding="utf-8") if FOLDER in os.environ and path.exists() else ""


def leave_notices_to_the_agent() -> None:
    """Do not die of a scheduler's notice to all processes: the agent passes it on as SIGTERM."""
    for number in NOTICE_SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)


request = StopRequest()


def stopping() -> bool:
    """Whether this process was asked to stop; if so, save, and end with exit code 75.

    The ranks of a run are asked at about the same time, not at the same step. Before one of them
    leaves a loop of collectives, they should agree, for example by a reduction of this value.

        >>> muster.stopping()
        False

    Raises:
        MusterError: the first call is not in the main thread.
    """
    request.listen()
    return bool(request.why)


def on_stop(save: Callable[[], object]) -> None:
    """Call `save()` when this process is asked to stop; the process then exits with code 75.

    It is called between two lines of Python, wherever the main thread is.

        >>> muster.on_stop(lambda: print("saving"))

    Raises:
        UsageError: `save` is not a function.
        MusterError: this is not the main thread.
    """
    refuse(function("save", save), where="muster.on_stop: ")
    request.listen()
    request.saves.append(save)
