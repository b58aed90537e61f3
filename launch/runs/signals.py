"""The signals by which somebody has a run end, for whoever leads it at the time."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

# A scheduler tells of its time limit, or of preemption; workers are told why they stop.
NOTICE, NOTICE_SIGNALS = "notice", (signal.SIGUSR1, signal.SIGUSR2)
# Ctrl-Z of a terminal. Whoever suspends a launcher has not ended its run.
SUSPEND = signal.SIGTSTP
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Somebody wants the run to be over."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def on_stop(handler: Callable[[int, FrameType | None], None]) -> None:
    """Have `handler` called from now on."""
    for number in STOP_SIGNALS:
        # nohup has a run outlive its terminal
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def on_suspend(handler: Callable[[int, FrameType | None], None]) -> None:
    """Have `handler` called from now on; it is for it to stop this process."""
    if signal.getsignal(SUSPEND) != signal.SIG_IGN:  # of a shell without job control
        signal.signal(SUSPEND, handler)


@contextmanager
def between_attempts(received: Sequence[int]) -> Iterator[None]:
    """Inside it, while nothing runs yet or any more, a signal raises `Stopped` at once, and so do
    those that came before unheeded.

    It ends when something else, such as the next attempt, has taken the signals over.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        on_stop(lambda number, frame: None)  # one is enough
        raise Stopped(number)

    on_stop(stop)
    if received:
        raise Stopped(received[0])
    yield
