"""The agent that a scheduler starts on each node of a job; it connects to its run's leader.

    srun --ntasks-per-node=1 python muster/run_module.py launch.in_job.task FILE

FILE, in the run folder, contains the leader's port, the secret by which agents and leader recognise
each other, and the location of the scheduler's class.
"""

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.agent.agent import serve
from launch.deadlines import AGENT_REACHES_LEADER_S, AGENT_SEES_LEADER_FILE_S, SHARED_DISK_TICK_S
from launch.in_job.job_connection import AgentTask, connect, verified
from launch.nodes.channel import running_s
from launch.nodes.scheduler import class_at
from launch.nodes.this_machine import gpu_count, own_address_in
from muster.errors import MusterError, run
from muster.worker.process import end_with_parent
from muster.writing import read_json


def main() -> int:
    end_with_parent()  # without the scheduler's supervisor, nobody could end this process
    about = _read_once_seen(Path(sys.argv[1]))
    job = class_at(str(about["job"]))
    index = int(os.environ[job.index_variable])
    leader = os.environ[job.origin_variable]
    host = os.environ.get(job.node_variable, socket.gethostname())
    network = about["network"]
    # each agent names its address: after a restart any of them may be the agent of node 0
    address = own_address_in(network, host) if network is not None else ""
    workers = gpu_count() if about["counts_gpus"] else 0
    task = AgentTask(index, host, workers, address)
    token = str(about["token"])
    connection = connect((leader, int(about["port"])), token, task, wait_s=AGENT_REACHES_LEADER_S)
    return serve(connection.channel, lambda message: verified(message, token, index), job)


def _read_once_seen(path: Path) -> Mapping[str, Any]:
    """The content of the file, once this node sees it.

    Raises:
        MusterError: this node does not see the file in time.
    """
    deadline = running_s() + AGENT_SEES_LEADER_FILE_S
    while (record := read_json(path)) is None:
        if running_s() > deadline:
            raise MusterError(
                f"{path} not found on this node: the run folder must be on a file system that all "
                "nodes share\ntip: choose one with --logs-dir"
            )
        time.sleep(SHARED_DISK_TICK_S)
    return record


if __name__ == "__main__":
    run(main)
