"""`up` makes the testbed; `down` removes all of it."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from launch.virtual_cluster import (
    daemons,
    links,
    namespaces,
    slurm_daemons,
    ssh_daemons,
    virtual_nodes,
)
from launch.virtual_cluster.commands import call
from launch.virtual_cluster.daemons import render
from launch.virtual_cluster.virtual_nodes import (
    BOX,
    CONTROL_NET,
    EXPERIMENT_NET,
    STATE,
    ClusterState,
    Options,
    VirtualNode,
)
from muster.errors import MusterError

NODE_LIST = STATE / "hosts"
Say = Callable[[str], None]


def up(options: Options, checkout: Path, say: Say) -> None:
    """Make a testbed with `options`, with all of its daemons alive.

    Raises:
        MusterError: another testbed is up and at least partly alive, a part of this one has died,
            or the testbed cannot be made. In the last case, nothing of it remains.
    """
    _refuse_inside()
    os.umask(0o022)  # sshd refuses a key file that others may write
    with virtual_nodes.locked():
        cluster = virtual_nodes.read_state()
        if cluster and cluster.ready and (daemons.recorded() or daemons.inside(links.namespaces())):
            down_command = f"python {cluster.checkout}/launch/testbed.py down"
            if (cluster.options, cluster.checkout) != (options, str(checkout)):
                raise MusterError(
                    f"a machine can have only one testbed, and one with {cluster.options} is up, "
                    f"made from {cluster.holder}"
                    f"\ntip: end it first: {down_command}"
                )
            if names := daemons.dead():
                died = f"{', '.join(names)} of this testbed died"
                raise MusterError(f"{died}\ntip: make it again: {down_command}, then up")
            say(f"a testbed with {options} is already up")
            return
        if _remains():
            say("cleaning up after a testbed that was interrupted")
            _clean()
        try:
            _make(options, checkout, say)
        except BaseException:
            _clean()
            raise


def down(say: Say) -> None:
    """Remove the testbed completely.

    Raises:
        MusterError: something could not be removed.
    """
    _refuse_inside()
    with virtual_nodes.locked():
        if not _remains():
            say("no testbed is up")
            return
        _clean()
        say("the testbed is down, and all of it is removed")


def present() -> ClusterState:
    """The testbed that is up.

    Raises:
        MusterError: no testbed is up.
    """
    cluster = virtual_nodes.read_state()
    if cluster is None or not cluster.ready:
        raise MusterError("no testbed is up\ntip: start one: muster testbed up --nodes 4")
    return cluster


def _make(options: Options, checkout: Path, say: Say) -> None:
    STATE.mkdir(mode=0o755, exist_ok=True)
    cluster = ClusterState(
        checkout=str(checkout),
        holder=f"{checkout} ({os.environ.get('SUDO_USER', 'root')}, process {os.getpid()}, since "
        f"{time.strftime('%Y-%m-%d %H:%M:%S')})",
        options=options,
        cores=tuple(sorted(os.sched_getaffinity(0))),
    )
    virtual_nodes.write_state(cluster)
    say("configuration and keys")
    _write(cluster.nodes, options.gpus)
    say("network")
    links.make(cluster.nodes, options)
    say("nodes")
    venv = Path(options.venv) if options.venv else None
    for node in cluster.nodes:
        namespaces.make(node)
        if options.private_home:
            namespaces.make_private(node, checkout, venv)
    say("slurm and sshd")
    _start(cluster)
    virtual_nodes.write_state(replace(cluster, ready=True))


def _write(nodes: Sequence[VirtualNode], gpus: int) -> None:
    """Write the files that daemons and commands read."""
    net = CONTROL_NET if nodes[0].control else EXPERIMENT_NET
    text = render("hosts", nodes=nodes, box=slurm_daemons.box(), box_address=f"{net}.{BOX}")
    namespaces.HOSTS.write_text(text)
    NODE_LIST.write_text("".join(f"{node.name}\n" for node in nodes))
    ssh_daemons.write(nodes)
    slurm_daemons.write(nodes, gpus)


def _start(cluster: ClusterState) -> None:
    """Start every daemon, and wait until all are ready."""
    slurm_daemons.start_munged()
    daemons.wait(slurm_daemons.MUNGED, slurm_daemons.SOCKET.exists)
    slurm_daemons.start_controller()
    for node in cluster.nodes:
        ssh_daemons.start(node, private=cluster.options.private_home)
    daemons.wait(slurm_daemons.CONTROLLER, slurm_daemons.answers)
    for node in cluster.nodes:
        slurm_daemons.start(node)
    for node in cluster.nodes:
        daemons.wait(node.daemon("sshd"), partial(ssh_daemons.answers, node))
        daemons.wait(node.daemon("slurmd"), partial(_is_in_service, node))


def _is_in_service(node: VirtualNode) -> bool:
    return slurm_daemons.is_usable(slurm_daemons.states().get(node.name, ""))


def _clean() -> None:
    daemons.end(lambda: {*daemons.recorded(), *daemons.inside(links.namespaces())})
    links.remove()
    ssh_daemons.remove()
    # Usually nothing is mounted here. If something is, removing the folder would delete its files.
    for mount in links.mounted_below(STATE):
        call(["umount", "--no-mtab", "--lazy", mount])
    if STATE.exists():
        shutil.rmtree(STATE)


def _remains() -> bool:
    return STATE.exists() or bool(links.namespaces() or links.links())


def _refuse_inside() -> None:
    if os.getpid() in daemons.inside(links.namespaces()):
        raise MusterError("this is a node of the testbed\ntip: run this outside the testbed")
