"""A process that was stopped for longer than its limits starts counting anew."""

import signal
import time
from contextlib import suppress

import psutil
import pytest

from tests.launch.led import agent, finished, led

pytestmark = pytest.mark.slow

SUSPENDED_S = 14.0
LIMIT_S = 10.0


def send(number: int, processes: list[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):  # a short-lived process, which has ended
            one.send_signal(number)


def test_a_suspended_run_goes_on_where_it_was(tmp_path):
    """`scontrol suspend` and `resume` act neither on all processes at once nor in a fixed order."""
    limits = {"AGENT_LOST_WHEN_SILENT_S": LIMIT_S, "LEADER_LOST_WHEN_SILENT_S": LIMIT_S}
    with led(tmp_path, **limits) as leader:
        time.sleep(2.5)  # so that agents have reported on their workers
        own = psutil.Process(leader.pid)
        below = own.children(recursive=True)
        own.suspend()
        time.sleep(0.3)
        send(signal.SIGSTOP, below)
        time.sleep(SUSPENDED_S)
        send(signal.SIGCONT, below)
        time.sleep(0.5)
        own.resume()
        time.sleep(2.5)  # time for all of them to look at their clocks
        assert "no progress" not in finished(leader, tmp_path)


def test_a_leader_that_was_stopped_alone_loses_no_agent(tmp_path):
    """As on a laptop whose lid is closed: the agents wait for the leader, and it for them."""
    limits = {"AGENT_LOST_WHEN_SILENT_S": LIMIT_S}
    with led(tmp_path, **limits) as leader:
        leader.send_signal(signal.SIGSTOP)
        time.sleep(SUSPENDED_S)
        leader.send_signal(signal.SIGCONT)
        time.sleep(2.5)
        finished(leader, tmp_path)


def test_agent_resumed_after_suspension_does_not_count_leader_as_silent(tmp_path):
    limits = {"AGENT_LOST_WHEN_SILENT_S": 100.0, "LEADER_LOST_WHEN_SILENT_S": LIMIT_S}
    with led(tmp_path, **limits) as leader:
        first = agent(tmp_path, 1)
        first.suspend()
        time.sleep(SUSPENDED_S)
        first.resume()
        time.sleep(2.5)
        finished(leader, tmp_path)


def test_suspended_agent_is_reported_lost_and_run_ends(tmp_path):
    """The leader cannot tell a suspended agent from a lost one, and others wait for its node."""
    with led(tmp_path, AGENT_LOST_WHEN_SILENT_S=LIMIT_S) as leader:
        stopped = agent(tmp_path, 1)
        stopped.suspend()
        out, err = leader.communicate(timeout=300)
    assert leader.returncode == 1, out + err
    assert "no message from node1" in out + err
