"""The agent of a node other than 0: it finds node 0, and starts when told.

The agent of a Slurm job goes in by its leader's door, too. What it is to run, which it is told
through that connection, has a proof of its own, and none of the user's secrets: those are in a file
that only their owner may read.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from launch.agent.membership.coordinator import Peers
from launch.agent.membership.door import Link, Who, enter, proof, shows
from launch.spec import Assignment
from muster.errors import MusterError
from muster.run_files import SECRETS
from muster.writing import read_json

WAIT_S = 1.0  # for node 0, at a time


class CoordinatorClient(Peers):
    """An agent that connects to the coordinator."""

    def _meet(self) -> None:
        if self._links:
            return
        assignment = self.assignment
        where = (assignment.coordinator_address, assignment.coordinator_ports[0])
        if self._waited_s() > assignment.spec.join_s:
            self.trouble = (
                f"{assignment.name} could not reach node 0 at {where[0]} (port {where[1]}) for "
                f"{assignment.spec.join_s:.0f} s; is that its address on this network, and is no "
                "firewall between?"
            )
        who = Who(assignment.index, assignment.name, len(assignment.ranks))
        with suppress(MusterError):  # it is tried again
            link = enter(where, assignment.token, who, wait_s=WAIT_S, own=assignment.address)
            link.name, self.own_address = "node 0", link.own_address
            self._add(0, link)

    def _take(self, link: Link, message: dict[str, Any]) -> None:
        if "start" in message:
            self.master_port = int(message["start"])


def sealed(assignment: Assignment, token: str) -> dict[str, Any]:
    """The message that tells an agent what to do, through a network."""
    plain = replace(assignment, spec=replace(assignment.spec, secrets={})).to_json()
    return {"assignment": plain, "shown": proof(token, "assignment", _text(plain))}


def unsealed(message: Mapping[str, Any], token: str, index: int) -> Assignment:
    """What it says, for the agent of this index.

    Raises:
        MusterError: it is not from one that knows the token, or for another.
    """
    plain = message["assignment"]
    if not shows(message, token, "assignment", _text(plain)) or plain["index"] != index:
        raise MusterError("what this agent was told to do is not from its leader")
    assignment = Assignment.from_json(plain)
    secrets = read_json(SECRETS.path(assignment.spec.run_dir))
    return replace(assignment, spec=replace(assignment.spec, secrets=secrets or {}))


def _text(plain: Mapping[str, Any]) -> str:
    return json.dumps(plain, sort_keys=True)
