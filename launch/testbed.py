"""No cluster? Turn this machine into one: `python launch/testbed.py up --nodes 4`, as root."""

if __name__ == "__main__":  # as a script, which has no module of ours on its path yet
    from pathlib import Path
    from runpy import run_path

    run_path(f"{Path(__file__).resolve().parents[1]}/muster/run_module.py")["start"](__file__)

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from rich.table import Table

from configs import console
from configs.help_page import Parser, describe
from launch.virtual_cluster import (
    commands,
    daemons,
    lifecycle,
    namespaces,
    slurm_daemons,
    ssh_daemons,
)
from launch.virtual_cluster.virtual_nodes import Options, rate, rate_text
from muster.checkout import CHECKOUT
from muster.command import this_command
from muster.errors import UsageError
from muster.printable import printable
from muster.terminal import TIP

# Flags that were removed, and what to do instead.
REMOVED = {
    "--routed": "add routes with `exec NODE -- ip route`",
    "--rails": "add a second card with `ip link add muster-exp100 type veth peer name exp1 netns "
    "muster-node0`; `down` removes it",
}
NODES = range(1, 17)


def main() -> int:
    for word in sys.argv[1:] if sys.argv[1:2] == ["up"] else ():
        if (flag := word.partition("=")[0]) in REMOVED:
            raise UsageError(f"{flag} was removed{TIP}{REMOVED[flag]}")
    parser = _parser()
    args = parser.parse_args()
    if args.action is None:
        parser.print_help(sys.stderr)
        raise UsageError("no action given\ntip: choose one of these, as in muster testbed up")
    if args.action == "up":
        return _up(args)
    if args.action == "exec":
        command = args.command[1:] if args.command[:1] == ["--"] else args.command
        return _exec(args.node, command, private=args.private)
    if args.action == "env":
        print(_env())
        return 0
    commands.require_supported_host()
    if args.action == "down":
        lifecycle.down(_say)
        return 0
    return _status()


def _status() -> int:
    """Print a line for each node; return 0 if everything is alive and in service, else 1.

    Raises:
        MusterError: no testbed is up.
    """
    cluster = lifecycle.present()
    states = slurm_daemons.states()
    limit = rate_text(cluster.options.rate) if cluster.options.rate else "unlimited"
    table = Table("node", "address", "cores", "slurmd", "sshd", "slurm", "rate", box=None)
    healthy = not daemons.dead()
    for node in cluster.nodes:
        state = states.get(node.name, "unknown")
        healthy &= slurm_daemons.is_usable(state)
        table.add_row(
            node.name,
            " ".join(address for address in (node.address, node.control) if address),
            ",".join(map(str, node.cores)),
            *(_pid_of(node.daemon(kind)) for kind in ("slurmd", "sshd")),
            state,
            limit,
        )
    print(printable(f"{cluster.options}, made from {cluster.holder}"))
    for name in (slurm_daemons.MUNGED, slurm_daemons.CONTROLLER):
        print(f"{name}: {_pid_of(name)}")
    console.show(table)
    return 0 if healthy else 1


def _pid_of(daemon: str) -> str:
    return str(daemons.pid(daemon) or "dead")


def _up(args: argparse.Namespace) -> int:
    venv = _venv(os.environ.get("MUSTER_BED_VENV"))
    wanted = Options(
        nodes=args.nodes,
        rate=args.rate,
        control_network=args.control_network or args.ipv6,
        ipv6=args.ipv6,
        gpus=args.gpus,
        private_home=args.private_home,
        venv=str(venv) if venv and args.private_home else None,
    )
    commands.require_supported_host()
    slurm_daemons.refuse_gpus(wanted.gpus)
    lifecycle.up(wanted, CHECKOUT, _say)
    command = this_command()
    print(
        f"{wanted.nodes} nodes are up: node0 to node{wanted.nodes - 1}\n"
        f'  Slurm   eval "$({command} env)"; srun --nodes {wanted.nodes} hostname\n'
        f"  ssh     ssh -F {ssh_daemons.CONFIG} node0 hostname\n"
        f"  a node  {command} exec node0 -- hostname\n"
        f"  end     {command} down"
    )
    return 0


def _venv(named: str | None) -> Path | None:
    """The environment that a private home shows: the folder `named`, or the checkout's own."""
    venv = Path(named).absolute() if named else CHECKOUT / ".venv"
    if named and not (venv / "bin" / "python").exists():
        raise UsageError(
            f"MUSTER_BED_VENV={named}: no bin/python found\ntip: set it to a virtual environment"
        )
    return venv if named or (venv.is_dir() and not venv.is_symlink()) else None


def _exec(name: str, command: Sequence[str], *, private: bool) -> NoReturn:
    if not command:
        raise UsageError("exec needs a command\ntip: put it after --: exec node0 -- hostname")
    commands.require_supported_host()
    cluster = lifecycle.present()
    nodes = {node.name: node for node in cluster.nodes}
    if name not in nodes:
        raise UsageError(f"exec {name}: no such node{TIP}choose from {', '.join(nodes)}")
    is_private = private and cluster.options.private_home
    words = namespaces.enter(node := nodes[name], private=is_private)
    # Not nsenter's --wd: it takes the folder of the box, even one that the node's view hides.
    folder = namespaces.home() if is_private else Path.cwd()
    words += ["env", f"--chdir={folder}", f"HOME={namespaces.home()}"]
    words += [f"SLURM_CONF={slurm_daemons.CONFIG}"]
    os.sched_setaffinity(0, node.cores)
    sys.stdout.flush()
    os.execvp(words[0], [*words, *command])


def _env() -> str:
    lifecycle.present()
    values = {
        "SLURM_CONF": slurm_daemons.CONFIG,
        "MUSTER_SSH_CONFIG": ssh_daemons.CONFIG,
        "MUSTER_HOSTS": lifecycle.NODE_LIST,
    }
    return "export " + " ".join(f"{key}={shlex.quote(str(path))}" for key, path in values.items())


def _parser() -> argparse.ArgumentParser:
    prog = this_command()
    parser = Parser(
        prog=prog,
        description="Turn this machine into a test cluster: nodes with a network, Slurm and sshd.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(
        dest="action", title="actions", description=f"each has a help: {prog} ACTION --help",
        metavar="ACTION",
    )  # fmt: skip
    up = actions.add_parser("up", help="start a testbed", allow_abbrev=False)
    flag = up.add_argument
    flag("--nodes", type=int, default=4, choices=NODES, metavar="N", help="1 to 16 (default: 4)")
    flag(
        "--rate",
        type=rate,
        metavar="RATE",
        help="limit the speed of each link, such as 100mbit or 1gbit",
    )
    switch = partial(flag, action="store_true")
    switch(
        "--control-network",
        help="add a second network, to which the nodes' names resolve, as on CloudLab",
    )
    switch("--ipv6", help="use only IPv6 on the experiment network; adds a control network")
    switch(
        "--private-home",
        help="give ssh an empty home on each node, without this checkout, as on bare metal",
    )
    flag(
        "--gpus",
        type=int,
        choices=range(9),
        default=0,
        metavar="N",
        help="0 to 8 fake GPUs per node for Slurm, which must be 24.05 or newer (default: 0)",
    )
    actions.add_parser("status", help="show which processes run; exit with 1 if one does not")
    actions.add_parser("down", help="stop the testbed, and remove all of it")
    actions.add_parser("env", help=f'print variables for tools: eval "$({prog} env)"')
    run = actions.add_parser("exec", help="run a command on a node: exec node0 -- hostname")
    run.add_argument(
        "--private", action="store_true", help="use the node's private home, as in an ssh session"
    )
    run.add_argument("node", metavar="NODE")
    run.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    run.usage = f"{prog} exec [-h] [--private] NODE -- COMMAND [ARGUMENT ...]"
    describe(actions)
    return parser


def _say(line: str) -> None:
    print(line, flush=True)
