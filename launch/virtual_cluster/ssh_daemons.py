"""Give each node an sshd with its own host key; one user key logs in to all, from anywhere."""

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from launch.deadlines import TESTBED_SSHD_ANSWERS_S
from launch.virtual_cluster import daemons, namespaces
from launch.virtual_cluster.commands import call
from launch.virtual_cluster.daemons import render
from launch.virtual_cluster.virtual_nodes import STATE, VirtualNode

FOLDER = STATE / "ssh"
CONFIG = STATE / "ssh_config"
# Debian's sshd needs this folder, which systemd makes; sshd has no setting for it.
RUN_FOLDER = Path("/run/sshd")
MADE_MARK = FOLDER / "made-run-sshd"  # exists if the testbed has made that folder


def write(nodes: Sequence[VirtualNode]) -> None:
    """Write the keys, each node's sshd_config, and the ssh_config for all logins.

    Raises:
        MusterError: ssh-keygen failed.
    """
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    client = FOLDER / "id_ed25519"
    _key(client, "muster-testbed")
    (FOLDER / "authorized_keys").write_text(client.with_suffix(".pub").read_text())
    known_hosts = []
    for node in nodes:
        host_key = FOLDER / f"{node.name}_key"
        _key(host_key, node.name)
        names = [node.name, node.address, *([node.control] if node.control else [])]
        known_hosts.append(f"{','.join(names)} {host_key.with_suffix('.pub').read_text()}")
        text = render("sshd_config", node=node, folder=FOLDER, host_key=host_key, state=STATE)
        (FOLDER / f"{node.name}.conf").write_text(text)
    (FOLDER / "known_hosts").write_text("".join(known_hosts))
    CONFIG.write_text(render("ssh_config", nodes=nodes, folder=FOLDER, key=client))


def start(node: VirtualNode, *, private: bool) -> None:
    """Start the node's sshd; its sessions see the node's files.

    Raises:
        MusterError: no process holds the node's namespaces.
    """
    if not RUN_FOLDER.exists():
        MADE_MARK.touch()
        RUN_FOLDER.mkdir(mode=0o755)
    # sshd starts itself again for each session, for which it needs its own path
    sshd = str(shutil.which("sshd"))
    argv = [sshd, "-D", "-e", "-f", str(FOLDER / f"{node.name}.conf")]
    daemons.start(
        node.daemon("sshd"), [*namespaces.enter(node, private=private), *argv], node.cores
    )


def answers(node: VirtualNode) -> bool:
    """Whether the node's sshd answers connections."""
    try:
        with socket.create_connection(
            (node.resolved_address, 22), timeout=TESTBED_SSHD_ANSWERS_S
        ) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def remove() -> None:
    """Remove /run/sshd if it was made for the testbed."""
    if MADE_MARK.exists() and RUN_FOLDER.is_dir() and not any(RUN_FOLDER.iterdir()):
        RUN_FOLDER.rmdir()


def _key(path: Path, comment: str) -> None:
    call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])
