"""What a launcher starts on each node: the node's supervisor, which is told what to do on stdin.

python -m launch.agent
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from configs.entry_point import run
from launch.agent.supervisor import TICK_S, Agent
from launch.nodes.channel import SILENT_S, Channel, Heartbeat
from launch.spec import Assignment


def main() -> int:
    """Be led through stdin and stdout."""
    # Whatever is printed here by accident must not come between the messages.
    launcher = Channel(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    return serve(launcher, lambda message: Assignment.from_json(message["assignment"]))


def serve(launcher: Channel, read: Callable[[Mapping[str, Any]], Assignment]) -> int:
    """Wait for the assignment, the first message of the launcher, and act on it."""
    Heartbeat().add(launcher)
    while True:
        messages = launcher.receive()
        for at, message in enumerate(messages, start=1):
            if "stop" in message:  # before there was anything to do
                return int(message["stop"])
            if "assignment" in message:
                launcher.put_back(messages[at:])
                assignment = read(message)
                os.chdir(assignment.cwd)
                return Agent(assignment, launcher).run()
        if launcher.ended or launcher.silent_s > SILENT_S:
            return 1
        time.sleep(TICK_S)


if __name__ == "__main__":
    run(main)
