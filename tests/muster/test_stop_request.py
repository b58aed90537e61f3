"""A training ends once and in order, whoever asks it to stop and however often."""

import os
import pickle
import signal
from pathlib import Path

import pytest

from muster.errors import STOPPED
from muster.orderly_stop import StoppedCleanly, StopRequest


class TooLate(Exception):
    """A signal that arrived after the training."""


@pytest.fixture(autouse=True)
def _handler():
    def late(number: int, frame: object) -> None:
        raise TooLate

    numbers = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, late) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_stop_request_has_the_reason_of_the_first_signal():
    request = StopRequest()
    with request.during(signal.SIGUSR1):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.why == "SIGUSR1"


def test_second_interrupt_ends_the_process_at_once():
    request = StopRequest()
    with pytest.raises(KeyboardInterrupt), request.during(signal.SIGINT):
        os.kill(os.getpid(), signal.SIGINT)
        assert request.why == "SIGINT"
        os.kill(os.getpid(), signal.SIGINT)


def test_signal_after_a_clean_stop_does_not_change_its_end():
    with pytest.raises(StoppedCleanly) as stopped, StopRequest().during(signal.SIGUSR1):
        os.kill(os.getpid(), signal.SIGTERM)
        raise StoppedCleanly(3, "SIGTERM", Path("checkpoints"))
    os.kill(os.getpid(), signal.SIGTERM)  # from the agent, after the scheduler's signal
    assert stopped.value.code == STOPPED
    assert "after step 3 (SIGTERM)" in str(stopped.value)


def test_on_stop_within_a_training_is_called_after_its_checkpoint():
    request = StopRequest()
    calls = []
    with pytest.raises(StoppedCleanly), request.during():
        request.saves.append(lambda: calls.append("on_stop"))
        os.kill(os.getpid(), signal.SIGTERM)
        calls.append("checkpoint")
        raise StoppedCleanly(3, request.why, Path("checkpoints"))
    assert calls == ["checkpoint", "on_stop"]


def test_signals_are_as_before_after_a_training_that_was_not_stopped():
    request = StopRequest()
    with request.during(signal.SIGUSR1):
        pass
    with pytest.raises(TooLate):
        os.kill(os.getpid(), signal.SIGTERM)
    assert not request.why


def test_signal_while_handlers_are_put_back_does_not_kill_the_process(monkeypatch):
    install = signal.signal

    def asked_meanwhile(number, handler):
        if number == signal.SIGTERM:
            os.kill(os.getpid(), number)
        return install(number, handler)

    child = os.fork()
    if not child:
        with StopRequest().during(signal.SIGUSR1):
            monkeypatch.setattr(signal, "signal", asked_meanwhile)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_clean_stop_reaches_the_caller_of_a_launched_function():
    stopped = pickle.loads(pickle.dumps(StoppedCleanly(3, "notice", Path("checkpoints"))))
    assert stopped.code == STOPPED
    assert stopped.facts() == {"step": 3, "why": "notice", "resume": "checkpoints"}


def test_signal_in_a_forked_child_is_no_request():
    request = StopRequest()
    with request.during(signal.SIGUSR1):
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGUSR1)
            os._exit(bool(request.why))
        assert os.waitpid(child, 0)[1] == 0
