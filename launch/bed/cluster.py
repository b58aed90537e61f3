"""`up` makes the bed or heals the one that is up; `down` leaves nothing of it."""

import getpass
import os
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from configs.errors import MusterError
from launch.bed import daemons, network, nodes, slurm, ssh, state, views
from launch.bed.commands import call
from launch.bed.nodes import BOX, CONTROL_NET, EXPERIMENT_NET, Node
from launch.bed.options import Options
from launch.bed.rendering import render
from launch.bed.state import STATE, Bed

NODE_LIST = STATE / "hosts"
Say = Callable[[str], None]


def up(options: Options, checkout: Path, say: Say) -> None:
    """Have a bed with `options` up, all of its daemons alive.

    Raises:
        MusterError: another bed is up and something of it lives, or this one cannot be made; then
            nothing of it is left.
    """
    _refuse_inside()
    os.umask(0o022)  # sshd trusts no key file that others may write
    with state.locked():
        bed = state.read()
        if bed and bed.ready and (_is_same(bed, options, checkout) or _lives()):
            _refuse_other(bed, options, checkout)
            say(f"a bed with {options} is up already")
            _heal(bed, say)
            return
        if _remains():
            say("cleaning up after one that was cut short")
            _clean()
        try:
            _make(options, checkout, say)
        except BaseException:
            _clean()
            raise


def down(say: Say) -> None:
    """Have no bed, and nothing left of one.

    Raises:
        MusterError: something would not go.
    """
    _refuse_inside()
    with state.locked():
        if not _remains():
            say("nothing is up")
            return
        _clean()
        say("the bed is down; nothing is left of it")


def present() -> tuple[Bed, list[Node]]:
    """The bed that is up, and its nodes.

    Raises:
        MusterError: none is.
    """
    bed = state.read()
    if bed is None or not bed.ready:
        raise MusterError("no bed is up; make one: python launch/testbed.py up --nodes 4")
    return bed, nodes.of(bed.options, bed.cores)


def _make(options: Options, checkout: Path, say: Say) -> None:
    STATE.mkdir(mode=0o755, exist_ok=True)
    bed = Bed(
        checkout=str(checkout),
        user=os.environ.get("SUDO_USER") or getpass.getuser(),
        pid=os.getpid(),
        since=time.strftime("%Y-%m-%d %H:%M:%S"),
        options=options,
        cores=tuple(sorted(os.sched_getaffinity(0))),
    )
    state.write(bed)
    hosts = nodes.of(options, bed.cores)
    say("configuration and keys")
    _write(hosts, options.gpus)
    say("network")
    network.make(hosts, options)
    say("nodes")
    for node in hosts:
        _open(node, bed)
    say("slurm and sshd")
    _start(bed, hosts)
    state.write(state.finished(bed))


def _write(hosts: Sequence[Node], gpus: int) -> None:
    net = CONTROL_NET if hosts[0].control else EXPERIMENT_NET
    text = render("hosts", nodes=hosts, box=slurm.box(), box_address=f"{net}.{BOX}")
    views.HOSTS.write_text(text)
    NODE_LIST.write_text("".join(f"{node.name}\n" for node in hosts))
    ssh.write(hosts)
    slurm.write(hosts, gpus)


def _open(node: Node, bed: Bed) -> None:
    views.make(node)
    if bed.options.private_home:
        venv = Path(bed.options.venv) if bed.options.venv else None
        views.make_private(node, Path(bed.checkout), venv)


def _start(bed: Bed, hosts: Sequence[Node]) -> list[str]:
    """Start every daemon that is not alive, wait until all do their work, and name the started."""
    started = []

    def ensure(name: str, start: Callable[[], None]) -> None:
        if daemons.pid(name) is None:
            start()
            started.append(name)

    ensure(slurm.MUNGED, slurm.start_munged)
    daemons.wait(slurm.MUNGED, slurm.SOCKET.exists)
    ensure(slurm.CONTROLLER, slurm.start_controller)
    for node in hosts:
        ensure(ssh.daemon(node), partial(ssh.start, node, private=bed.options.private_home))
    daemons.wait(slurm.CONTROLLER, slurm.answers)
    for node in hosts:
        ensure(slurm.daemon(node), partial(slurm.start, node))
    for node in hosts:
        daemons.wait(ssh.daemon(node), partial(ssh.answers, node))
        daemons.wait(slurm.daemon(node), partial(_is_in_service, node, started))
    return started


def _is_in_service(node: Node, started: Sequence[str]) -> bool:
    # One that was alive all along may be drained or down because its user wants it so.
    if slurm.daemon(node) not in started:
        return True
    return slurm.listens(node) and slurm.is_usable(slurm.states().get(node.name, ""))


def _heal(bed: Bed, say: Say) -> None:
    hosts = nodes.of(bed.options, bed.cores)
    for node in hosts:
        held = views.anchors(node, private=bed.options.private_home)
        if not all(map(daemons.pid, held)):
            # Nothing else can enter its namespaces any more: it boots anew.
            daemons.end(partial(daemons.inside, [network.NAMESPACES / node.netns]))
            _open(node, bed)
    for name in _start(bed, hosts):
        say(f"{name} was dead and is back")


def _clean() -> None:
    daemons.end(lambda: {*daemons.recorded(), *daemons.inside(network.namespaces())})
    network.remove()
    ssh.remove()
    # Nothing is mounted here; if it were, removing the folder would empty what is behind it.
    for at in network.mounted_below(STATE):
        call(["umount", "--no-mtab", "--lazy", at])
    if STATE.exists():
        shutil.rmtree(STATE)


def _remains() -> bool:
    return STATE.exists() or bool(network.namespaces() or network.links())


def _lives() -> bool:
    return bool(daemons.recorded() or daemons.inside(network.namespaces()))


def _is_same(bed: Bed, options: Options, checkout: Path) -> bool:
    return bed.options == options and bed.checkout == str(checkout)


def _refuse_other(bed: Bed, options: Options, checkout: Path) -> None:
    if not _is_same(bed, options, checkout):
        raise MusterError(
            f"a bed with {bed.options} is up, made from {bed.holder()}, and there is one per"
            f" machine; end it first: python {bed.checkout}/launch/testbed.py down"
        )


def _refuse_inside() -> None:
    if os.getpid() in daemons.inside(network.namespaces()):
        raise MusterError("this is a node of the bed; run the command on the box")
