"""The agent of one node: it carries out one assignment after another, as long as the run lasts.

Its leader speaks to it through a pipe, or a connection. Each assignment is the node's part of one
attempt: see `node_attempt.py`. Between two attempts nothing of the run is left here but this
process. It leaves when its leader closes the channel or falls silent, or when it gets a signal.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from launch.agent.node_attempt import NodeAttempt, Signals
from launch.agent.processes import process_tree
from launch.deadlines import (
    LEADER_LOST_WHEN_SILENT_S,
    MAIN_LOOP_TICK_S,
    WORKERS_END_AFTER_SIGTERM_S,
)
from launch.nodes.channel import FROM_LEADER, Channel, Heartbeat, OddMessage, check_message
from launch.spec import Assignment
from launch.starters.base import WarmInterpreter
from muster.orderly_stop import NOTICE_SIGNALS, STOP_SIGNALS
from muster.scratch import scratch_folder

PATH_BYTES = 60  # below it are workers' sockets, whose path may have 103 bytes in all


def main() -> int:
    """Serve a leader through stdin and stdout."""
    # Accidental output must not get between the messages.
    leader = Channel(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    return serve(leader, lambda message: Assignment.from_json(message["assignment"]))


def serve(leader: Channel, read: Callable[[Mapping[str, Any]], Assignment]) -> int:
    """Be the agent of this node; `read` takes the assignment from a message."""
    Heartbeat().add(leader)
    return Agent(leader, read).run()


class Agent:
    """The agent of one node, from its first assignment to the run's end."""

    def __init__(self, leader: Channel, read: Callable[[Mapping[str, Any]], Assignment]) -> None:
        self._leader = leader
        self._read = read
        self._signals = Signals()
        self._attempt = -1  # the number of the last one
        self._warm = WarmInterpreter()

    def run(self) -> int:
        """Carry out assignments; return the exit code of the last one."""
        message = self._leader.first("assignment", "stop") or {"stop": 1}
        check_message(message, FROM_LEADER)
        if "stop" in message:  # before there was anything to do
            return int(message["stop"])
        for number in STOP_SIGNALS:
            signal.signal(number, lambda number, _: self._signals.note_stop(number))
        for number in NOTICE_SIGNALS:  # torchrun ignores them, see `spawn`
            signal.signal(number, lambda number, _: self._signals.notices.append(number))
        process_tree.adopt_orphans()
        try:
            code = 0
            due: Mapping[str, Any] | None = message
            while due is not None:
                code = self._carry_out(self._assignment(due))
                due = self._next_assignment()
            return code
        finally:
            self._warm.end()
            process_tree.end_descendants(WORKERS_END_AFTER_SIGTERM_S, in_a_hurry=lambda: True)

    def _assignment(self, message: Mapping[str, Any]) -> Assignment:
        """The assignment in a message.

        Raises:
            OddMessage: it has no form of ours, or was carried out before.
        """
        try:
            assignment = self._read(message)
        except (KeyError, TypeError, ValueError) as error:
            raise OddMessage(
                f"the assignment of this agent has another form than ours: {error!r}"
            ) from None
        if assignment.spec.attempt <= self._attempt:
            raise OddMessage("an assignment of an earlier attempt came again")
        self._attempt = assignment.spec.attempt
        return assignment

    def _carry_out(self, assignment: Assignment) -> int:
        os.chdir(assignment.cwd)
        # torchrun never removes its temporary folders, and a worker that is killed cannot
        is_long = len(tempfile.gettempdir()) > PATH_BYTES and os.access("/tmp", os.W_OK)
        with scratch_folder(within="/tmp" if is_long else None) as scratch:
            return NodeAttempt(assignment, self._leader, self._signals, scratch, self._warm).run()

    def _next_assignment(self) -> Mapping[str, Any] | None:
        """The message with the next one; None when there is no other.

        What still comes of the last attempt, such as the request to stop it, is of no use any more.
        """
        leader = self._leader
        while (
            not self._signals.stops
            and not leader.ended
            and leader.silent_s <= LEADER_LOST_WHEN_SILENT_S
        ):
            messages = leader.receive()
            for at, message in enumerate(messages, start=1):
                if "assignment" in message:
                    check_message(message, FROM_LEADER)
                    leader.put_back(messages[at:])
                    return message
            time.sleep(MAIN_LOOP_TICK_S)
        return None
