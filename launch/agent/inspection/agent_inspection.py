"""What connects an agent to an inspection: where requests come from, and where answers go.

An agent with a launcher is asked by it and answers to it. Without one, as in a scheduler's job, the
agent of node 0 leads the run: it reads the requests, asks the other agents, and gets their answers.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.agent.assignment import Assignment
from launch.agent.inspection.node_inspection import NodeInspection
from launch.agent.inspection.run_inspection import RunInspection
from launch.agent.membership.peers import Peers
from launch.agent.processes.worker_environment import INSPECTION
from launch.agent.stopping import Ended
from launch.nodes.channel import Channel


class AgentInspection:
    """One agent's side; in its folder `scratch` its workers will answer."""

    def __init__(self, assignment: Assignment, scratch: str, launcher: Channel | None) -> None:
        folder = Path(scratch, INSPECTION)
        self._launcher = launcher
        self._has_looked = self._has_ended = False
        self._peers: Peers | None = None
        self._node = NodeInspection(
            folder, assignment.index, assignment.name, self._reply, assignment.hang_after_s
        )
        self._run: RunInspection | None = None
        if launcher is None and assignment.index == 0:
            self._run = RunInspection(
                Path(assignment.run_dir), assignment.count, self._ask_all, _print, assignment
            )

    def begin(self, peers: Peers, ranks: Sequence[int]) -> None:
        """The workers are started, and the other agents are known."""
        self._peers, self._node.ranks = peers, ranks

    def hear(self, message: Mapping[str, Any]) -> None:
        """A message of the launcher, or of another agent."""
        if "inspect" in message:
            self._node.hear(message["inspect"])
        if "inspected" in message and self._run is not None:
            self._run.take(message["inspected"])

    def tick(self) -> None:
        """Pass on what has come.

        Raises:
            Ended: the run makes no progress, and its user wants that to end it; once.
        """
        if self._peers is None:
            return
        self._node.clock_offset_s = self._peers.clock_offset_s
        messages, self._peers.inspections = self._peers.inspections, []
        for message in messages:
            self.hear(message)
        self._node.tick()
        if self._run is not None:
            self._run.tick()
            if (hang := self._run.hang) is not None and not self._has_ended:
                self._has_ended = True
                raise Ended(1, "hang", hang)

    def last_look(self) -> None:
        """Ask the workers before they are ended; once."""
        if not self._has_looked:
            self._has_looked = True
            self._node.last_look()

    def finish(self) -> None:
        """Nothing more will come."""
        self.tick()
        if self._run is not None:
            self._run.finish()

    def _reply(self, message: dict[str, Any]) -> None:
        if self._launcher is not None:
            self._launcher.send(inspected=message)
        elif self._run is not None:
            self._run.take(message)
        elif self._peers is not None:
            self._peers.tell(inspected=message)

    def _ask_all(self, **message: Any) -> None:
        if self._peers is not None:
            self._peers.tell(**message)
        self.hear(message)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
