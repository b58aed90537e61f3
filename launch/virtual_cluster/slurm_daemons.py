"""Make a Slurm cluster of the nodes, with the box as login node, apart from any other Slurm."""

import os
import re
import socket
import subprocess
from collections.abc import Sequence

from launch.deadlines import TESTBED_SLURM_ANSWERS_S
from launch.virtual_cluster import daemons, namespaces
from launch.virtual_cluster.commands import call
from launch.virtual_cluster.daemons import render
from launch.virtual_cluster.virtual_nodes import (
    BOX,
    CONTROL_NET,
    EXPERIMENT_NET,
    STATE,
    VirtualNode,
)
from muster.errors import MusterError, UsageError

FOLDER = STATE / "slurm"
CONFIG = FOLDER / "slurm.conf"
MUNGE = STATE / "munge"
SOCKET = MUNGE / "socket"
# The names of the daemons that run only once, on the box.
MUNGED = "munged"
CONTROLLER = "slurmctld"
NODE_PORT = 16818
# A job in the partition `short` gets at most two of the nodes.
SHORT_NODES = 2
FAKE_GPUS_SINCE = (24, 5)  # the oldest version of Slurm that supports them


def refuse_gpus(count: int) -> None:
    """Refuse fake GPUs if Slurm does not support them.

    Raises:
        UsageError: the installed Slurm is too old.
    """
    if count and (installed := version()) < FAKE_GPUS_SINCE:
        needed, own = (f"{year}.{month:02}" for year, month in (FAKE_GPUS_SINCE, installed))
        raise UsageError(f"--gpus {count} needs Slurm {needed} or newer, but this is {own}")


def write(nodes: Sequence[VirtualNode], gpus: int) -> None:
    """Write the configuration, and a new key for munge; each node gets `gpus` fake GPUs."""
    for folder in (FOLDER / "controller", *(FOLDER / node.name for node in nodes)):
        folder.mkdir(parents=True, exist_ok=True)
    MUNGE.mkdir(mode=0o700, exist_ok=True)
    (MUNGE / "key").touch(mode=0o600)
    (MUNGE / "key").write_bytes(os.urandom(128))
    CONFIG.write_text(
        render(
            "slurm.conf",
            nodes=nodes,
            short=nodes[:SHORT_NODES],
            box=box(),
            box_address=f"{CONTROL_NET if ':' in nodes[0].address else EXPERIMENT_NET}.{BOX}",
            node_port=NODE_PORT,
            folder=FOLDER,
            socket=SOCKET,
            gpus=gpus,
        )
    )
    (FOLDER / "cgroup.conf").write_text(render("cgroup.conf"))
    # Slurm only needs to see a device file for each GPU.
    files = f"Name=gpu File=/dev/tty[0-{gpus - 1}]\n" if gpus else ""
    (FOLDER / "gres.conf").write_text(files)


def version() -> tuple[int, int]:
    """The version of the installed Slurm, such as 24, 11."""
    text = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def box() -> str:
    """The box's own name, in the form that Slurm compares."""
    return socket.gethostname().split(".")[0]


def start_munged() -> None:
    """Start munged, through which the testbed's daemons learn which user sent a request."""
    files = [f"--{kind}-file={MUNGE / kind}" for kind in ("key", "pid", "log", "seed")]
    # the socket of a killed munged would make the new one look ready
    SOCKET.unlink(missing_ok=True)
    options = ["--foreground", "--force", "--num-threads=2", f"--socket={SOCKET}"]
    daemons.start(MUNGED, ["munged", *options, *files])


def start_controller() -> None:
    """Start slurmctld on the box."""
    daemons.start(CONTROLLER, ["slurmctld", "-D", "-f", str(CONFIG)])


def start(node: VirtualNode) -> None:
    """Start the node's slurmd; it sees the box's files.

    Raises:
        MusterError: no process holds the node's namespaces.
    """
    argv = ["slurmd", "-N", node.name, "-D", "-f", str(CONFIG)]
    daemons.start(node.daemon("slurmd"), [*namespaces.enter(node), *argv], node.cores)


def answers() -> bool:
    """Whether slurmctld accepts commands."""
    return bool(_ask("sinfo", "--noheader", "--format=%P"))


def states() -> dict[str, str]:
    """The state of each node: idle, mixed, allocated, down, ...; empty if Slurm does not answer."""
    return parsed(_ask("sinfo", "--noheader", "--Node", "--format=%N %T"))


def parsed(text: str) -> dict[str, str]:
    """Each node's state from sinfo's output, which has a line for each partition of a node."""
    return dict(re.findall(r"^(\S+) +(\S+)$", text, re.MULTILINE))


def is_usable(state: str) -> bool:
    """Whether jobs can run on a node in this state; with a star at its end, it does not answer."""
    return state in ("idle", "mixed", "allocated", "completing")


def _ask(*argv: str) -> str:
    env = "env", "-i", f"PATH={os.environ['PATH']}", f"SLURM_CONF={CONFIG}"
    try:
        return call([*env, *argv], timeout_s=TESTBED_SLURM_ANSWERS_S)
    except MusterError:
        return ""
