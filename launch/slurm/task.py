"""srun starts this on each node of a job: an agent, which connects to the leader of its run.

srun --ntasks-per-node=1 python -m launch.slurm.task FILE

FILE, in the run folder, has the leader's port, and a secret by which to recognise it.
"""

import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.agent.membership.client import enter, unsealed
from launch.agent.membership.door import Who
from launch.agent.processes.die_with_parent import die_with_parent
from launch.agent.supervisor import serve
from launch.nodes.this_machine import addresses, gpu_count, own_address_in
from launch.slurm.controller import node_addresses
from muster.errors import MusterError, UsageError, run
from muster.writing import read_json

PATIENCE_S = 60.0  # for a file that a network file system does not show yet


def main() -> int:
    if len(sys.argv) != 2:
        raise UsageError("usage: python -m launch.slurm.task FILE")
    die_with_parent()  # without Slurm's supervisor nobody could end this process
    rank, num_nodes, leader = place(os.environ)
    meeting = _wait_for(Path(sys.argv[1]))
    address = first_address(num_nodes, meeting["network"]) if rank == 0 else ""
    workers = gpu_count() if meeting["counts_gpus"] else 0
    host = os.environ.get("SLURMD_NODENAME", socket.gethostname())
    own = Who(rank, host, workers, address)
    token = str(meeting["token"])
    launcher = enter(leader, int(meeting["port"]), token, own)
    return serve(launcher, lambda message: unsealed(message, token, rank))


def place(env: Mapping[str, str]) -> tuple[int, int, str]:
    """This task's rank in its step, the number of nodes, and the host of srun and the leader.

    Raises:
        MusterError: srun did not start this process.
    """
    needed = ("SLURM_PROCID", "SLURM_STEP_NUM_NODES", "SLURM_SRUN_COMM_HOST")
    if missing := [name for name in needed if name not in env]:
        raise MusterError(
            f"{', '.join(missing)} not set: agents in a Slurm job are started by srun; "
            "submit with: sbatch slurm/multinode.sh"
        )
    rank, num_nodes, address = (env[name] for name in needed)
    return int(rank), int(num_nodes), address


def _wait_for(path: Path) -> Mapping[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while (record := read_json(path)) is None:
        if time.monotonic() > deadline:
            raise MusterError(
                f"{path} is not there; the run folder must be on a file system that all nodes "
                "share: choose one with --logs-dir"
            )
        time.sleep(0.1)
    return record


def first_address(num_nodes: int, network: str | None) -> str:
    """This node's address for the other nodes of its run, if it is the first.

    It is the address by which Slurm itself reaches the node, not what the host's name may resolve
    to; or the one in `network`.

    Raises:
        MusterError: it has none that other nodes could reach.
    """
    host = socket.gethostname()
    if network is not None:
        return own_address_in(network, host)
    name, own = os.environ.get("SLURMD_NODENAME", host), addresses()
    known = [*node_addresses([name], os.environ).values()]
    with suppress(OSError):
        known.append(socket.gethostbyname(host))
    for address in known:
        if address in own and not address.startswith("127."):
            return address
    if num_nodes == 1:
        return "127.0.0.1"
    here = ", ".join(f"{one} on {name}" for one, name in own.items())
    raise MusterError(
        f"by which address other nodes reach {host} is not known; it has {here}; "
        "choose with --network, such as --network 10.10.1.0/24"
    )


if __name__ == "__main__":
    run(main)
