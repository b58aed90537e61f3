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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from muster.arguments import function
from muster.errors import STOPPED, MusterError, refuse
from muster.worker.process import NOTICE_SIGNALS as NOTICE_SIGNALS
from muster.worker.process import signal_name

# Workers that can stop cleanly create a file here, named after their pid. The agent writes the
# reason into it.
FOLDER = "MUSTER_STOPPABLE"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # a user stops a run with them
NOTICE = "notice"  # the reason that workers get when a scheduler has announced the end
# These signals also make a leader stop its run, unless it uses them otherwise. Their default action
# would end the leader without a message.
TIMER_SIGNALS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU)
ALSO_STOP = (signal.SIGQUIT, *NOTICE_SIGNALS, *TIMER_SIGNALS)


# How to continue a run that stopped cleanly; `worker_main` writes the same, but cannot import it.
ADVICE = "; continue with the same command"


def without_advice(message: str) -> str:
    """The message of a run that stopped cleanly, without the advice on continuing that run."""
    return message.partition(ADVICE)[0]


class StoppedCleanly(SystemExit):
    """The training ended early, with a checkpoint to continue from: exit code 75."""

    def __init__(self, step: int, why: str, checkpoint: Path) -> None:
        super().__init__(STOPPED)
        self.step = step
        self.why = why
        self.checkpoint = checkpoint

    def __str__(self) -> str:
        how = f"{ADVICE} and --resume {self.checkpoint}"
        return f"stopped cleanly after step {self.step} ({self.why}){how}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Allow pickling: `muster.launch` passes the exception of a rank to its caller."""
        return type(self), (self.step, self.why, self.checkpoint)

    def facts(self) -> dict[str, Any]:
        """The content of `stopped.json` in the run folder, from which the run can be continued."""
        return {"step": self.step, "why": self.why, "resume": str(self.checkpoint)}


class StopRequest:
    """Whether and why this process was asked to stop, and what it then does.

    The trainer and any other program use the same instance, `request`. The process ends once, no
    matter who asks and how often.
    """

    def __init__(self) -> None:
        self.why = ""  # such as SIGTERM, or notice: the time limit is near
        self._owner: int | None = None  # the process that listens; not its forked children
        self.saves: list[Callable[[], object]] = []
        self._is_awaited = False  # whether a training checks `why` and ends on its own

    def listen(self) -> None:
        """Treat SIGTERM as a request to stop from now on.

        Raises:
            MusterError: outside the main thread, where Python handles no signals.
        """
        if self._owner != os.getpid():
            self._begin()

    def _begin(self, *more: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise MusterError(
                "muster.on_stop and the first muster.stopping() set a signal handler, which "
                "Python allows only in the main thread"
                "\ntip: call them in the main thread, at the start of the program"
            )
        self._owner = os.getpid()
        self.why = ""
        sign = self._sign()
        if sign is not None:
            leave_notices_to_the_agent()
        for number in (signal.SIGTERM, *more):
            signal.signal(number, self._handle)
        if sign is not None:
            sign.touch()

    @contextmanager
    def during(self, *more: int) -> Iterator[None]:
        """A context for a training that checks `why` after each step and ends on its own.

        It starts to listen again, also to the signals `more`. After a clean end, when the training
        has its checkpoint, the functions given to `on_stop` are called. Signals still count as
        requests then: a scheduler and an agent both send one, and the second must not end the
        process in another way. After any other end, the previous signal handlers are restored.
        """
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, *more)}
        self._begin(*more)
        self._is_awaited = True
        try:
            yield
        except StoppedCleanly:
            for save in self.saves:
                save()
            raise
        except BaseException:
            self._restore(before)
            raise
        else:
            self._restore(before)

    def _restore(self, before: dict[int, Any]) -> None:
        if (sign := self._sign()) is not None:
            sign.unlink(missing_ok=True)
        for number, handler in before.items():
            signal.signal(number, handler)
        self._is_awaited = False
        self._owner = None  # only now: earlier, a signal would be taken for a forked child's
        self.why = ""

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:  # a forked data loader has inherited this handler
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if self.why:  # agents repeat the signal; a user who repeats Ctrl-C wants to end immediately
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.why = self._reason() or signal_name(number)
        if self.saves and not self._is_awaited:
            for save in self.saves:
                save()
            sys.exit(STOPPED)

    def _sign(self) -> Path | None:
        """The file with which this process announces that it can stop cleanly."""
        folder = os.environ.get(FOLDER)
        return Path(folder, str(self._owner)) if folder else None

    def _reason(self) -> str:
        """The reason that the agent has written into that file; or empty."""
        sign = self._sign()
        return sign.read_text(encoding="utf-8") if sign is not None and sign.exists() else ""


def leave_notices_to_the_agent() -> None:
    """Ignore a scheduler's notice to all processes: the agent passes it on as SIGTERM."""
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
