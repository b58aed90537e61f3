"""How Slurm's commands are asked, and what they say of the cluster.

Nothing here needs accounting (sacct), which many small clusters do not run.
"""

import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from launch.nodes.this_machine import addresses, own_address_in
from launch.slurm.allocation import scrubbed
from muster.errors import MusterError

TIMEOUT_S = 30.0
DAY_MIN = 24 * 60
ENDLESS = ("infinite", "UNLIMITED", "INFINITE")


class Silent(MusterError):
    """Slurm does not answer: nothing is known of it, or of a job, and one may ask again."""


def ask(argv: Sequence[str], env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run one of Slurm's commands as if from outside any job.

    Raises:
        Silent: its controller does not answer in time.
        MusterError: it is not installed.
    """
    try:
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            env=scrubbed(env),
            check=False,
        )
    except FileNotFoundError:
        raise MusterError(
            f"--launcher slurm, but there is no {argv[0]} here; run this on a login node of the "
            "cluster, or use launch/ssh.sh"
        ) from None
    except subprocess.TimeoutExpired:
        raise Silent(f"Slurm does not answer: {argv[0]} waited {TIMEOUT_S:.0f} s") from None


def minutes(text: str) -> float:
    """A time as sbatch takes and sinfo shows it: minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s."""
    if text in ENDLESS:
        return float("inf")
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, mins, secs = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, mins, secs = parts
    else:
        hours, (mins, secs) = 0, (*parts, 0)[:2]
    return int(days or 0) * DAY_MIN + hours * 60 + mins + secs / 60


def name(env: Mapping[str, str]) -> str:
    """The cluster's own name, to tell its job 12 from another cluster's.

    Raises:
        Silent: Slurm does not answer.
        MusterError: it is not there.
    """
    asked = ask(["scontrol", "show", "config"], env)
    found = re.search(r"^ClusterName\s*=\s*(\S+)", asked.stdout, re.MULTILINE)
    if found is None:
        raise Silent(f"Slurm does not answer: {last_line(asked.stderr)}")
    return found[1]


def last_line(text: str) -> str:
    """What a command of Slurm said last, which is why it failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "without a word"


def host_names(nodelist: str, env: Mapping[str, str]) -> list[str]:
    """The nodes of a list such as `node[0-3]`, in Slurm's order.

    Raises:
        MusterError: Slurm does not say.
    """
    asked = ask(["scontrol", "show", "hostnames", nodelist], env)
    names = asked.stdout.split()
    if asked.returncode or not names:
        raise MusterError(f"Slurm names no nodes of {nodelist}: {last_line(asked.stderr)}")
    return names


def node_addresses(names: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """By host name, the addresses by which Slurm itself reaches these nodes, where it says so."""
    found: dict[str, str] = {}
    with suppress(MusterError):  # no scontrol in a container, say
        shown = ask(["scontrol", "show", "node", "--oneliner", ",".join(names)], env)
        for line in shown.stdout.splitlines():
            pairs = dict(word.partition("=")[::2] for word in line.split())
            with suppress(OSError, KeyError):
                found[pairs["NodeHostName"]] = socket.gethostbyname(pairs["NodeAddr"])
    return found


def first_address(num_nodes: int, network: str | None) -> str:
    """This node's address, for the other nodes of its run; this is the first of them.

    It is the address by which Slurm itself reaches the node, not what the host's name happens to
    resolve to; or the one in `network`.

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
        f"which of its addresses other nodes reach {host} by is not known; it has {here}; "
        "choose with --network, such as --network 10.10.1.0/24"
    )
