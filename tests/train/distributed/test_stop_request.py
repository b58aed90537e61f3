"""Whoever asks a training to stop, and however often: it ends once, in order."""

import os
import signal
from pathlib import Path

import pytest

from train.distributed.stop_request import StoppedCleanly, StopRequest


class TooLate(Exception):
    """A signal that reached what comes after the training."""


@pytest.fixture(autouse=True)
def _handler():
    def late(number: int, frame: object) -> None:
        raise TooLate

    before = signal.signal(signal.SIGUSR1, late)
    signal.signal(signal.SIGTERM, late)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_the_first_signal_gives_the_reason():
    with StopRequest("USR1") as request:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.why == "SIGUSR1"


def test_one_that_comes_after_a_clean_stop_is_not_the_end_of_it():
    with pytest.raises(StoppedCleanly), StopRequest("USR1"):
        os.kill(os.getpid(), signal.SIGTERM)
        raise StoppedCleanly(3, "SIGTERM", Path("checkpoints"))
    os.kill(os.getpid(), signal.SIGTERM)  # the agent's, after the scheduler's


def test_after_a_training_that_was_not_stopped_signals_are_as_before():
    with StopRequest("USR1"):
        pass
    with pytest.raises(TooLate):
        os.kill(os.getpid(), signal.SIGTERM)
