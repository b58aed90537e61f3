"""What a Slurm cluster has, asked before anything is submitted.

Nothing here needs accounting (sacct), which many small clusters do not run.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from configs.settings.launch import LaunchConfig, SlurmConfig
from launch.slurm.allocation import scrubbed
from muster.errors import MusterError

TIMEOUT_S = 30.0
DAY_MIN = 24 * 60
ENDLESS = ("infinite", "UNLIMITED", "INFINITE")


class Silent(MusterError):
    """Slurm does not answer: nothing is known of it, or of a job, and one may ask again."""


@dataclass(frozen=True)
class Partition:
    """A part of the cluster that jobs are submitted to."""

    name: str
    is_default: bool
    nodes: int
    limit_min: float  # of a job's time


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


def partitions(env: Mapping[str, str]) -> list[Partition]:
    """All partitions that one may see.

    Raises:
        MusterError: Slurm is not there, or does not answer.
    """
    asked = ask(["sinfo", "--noheader", "--format=%P|%D|%l"], env)
    if asked.returncode:
        raise MusterError(
            f"Slurm does not answer: {last_line(asked.stderr)}; try again later, or train on this "
            "machine with --launcher local"
        )
    total: dict[str, Partition] = {}
    for line in asked.stdout.splitlines():
        name, nodes, limit = line.split("|")
        key = name.rstrip("*")
        before = total[key].nodes if key in total else 0  # a line per state and limit
        total[key] = Partition(key, name.endswith("*"), before + int(nodes), minutes(limit))
    return list(total.values())


def problems(launch: LaunchConfig, slurm: SlurmConfig, found: Sequence[Partition]) -> Iterator[str]:
    """What is wrong with the settings, for what the cluster has; a line each."""
    names = ", ".join(partition.name for partition in found)
    wanted = slurm.partition or next((one.name for one in found if one.is_default), None)
    if wanted is None:
        yield f"no --partition given, and the cluster has no default one; it has {names}"
        return
    for name in wanted.split(","):
        partition = next((one for one in found if one.name == name), None)
        if partition is None:
            yield f"--partition {name}: there is none of that name; the cluster has {names}"
            continue
        nodes = len(launch.nproc())
        if nodes > partition.nodes:
            yield (
                f"--nodes {nodes}, but partition {name} has {partition.nodes}; ask for fewer, "
                f"or choose of {names}"
            )
        if slurm.time is not None and minutes(slurm.time) > partition.limit_min:
            yield (
                f"--time {slurm.time}, but partition {name} allows {partition.limit_min:.0f} "
                "minutes; ask for less, or choose another --partition"
            )


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
