"""Every setting of a launch: the machines, how to reach them, and their limits."""

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from configs.settings import sbatch_options
from configs.settings.fields import MAX_PORT, MIN_PORT, Config, applying, setting, too_low

Slots = int | Literal["gpu"]  # workers of a node; "gpu": one for each of its GPUs
OnHang = Literal["warn", "stop", "restart"]
MAX_NODES = 4096
DEFAULT_TIME = "60"  # minutes of a job, if nothing says how many
# In the forms of `man sbatch`: minutes, minutes:seconds, hours:minutes:seconds, with days first.
TIME = re.compile(r"(\d+-\d+(:\d+){0,2}|\d+(:\d+){0,2}|UNLIMITED|INFINITE)", re.ASCII)
KEY = re.compile(r"[a-z][a-z0-9_-]*", re.ASCII | re.IGNORECASE)


class Nodes(int):
    """A number of nodes; written 2:4, at least two and at most four."""

    KIND = "N or MIN:MAX"
    least: int

    def __new__(cls, text: object) -> "Nodes":
        low, colon, high = str(text).partition(":")
        made = super().__new__(cls, high if colon else low)
        made.least = int(low)
        return made

    def __str__(self) -> str:
        return f"{self.least}:{int(self)}" if self.least != self else f"{int(self)}"

    __repr__ = __str__


@dataclass(frozen=True, kw_only=True)
class LaunchConfig(Config):
    """Where the workers start, and how.

    Raises:
        UsageError: on creation; one line for every setting that is wrong.
    """

    launcher: str = setting(
        "auto",
        "auto: ssh with --hosts, slurm if there is sbatch, else local",
        files="launch.launchers",
    )
    nodes: Nodes | None = setting(
        None,
        "machines, simulated by the local launcher; 2:4: two to four (default: all, or 1)",
        affects="sharing",
        aliases=["-N"],
    )
    nproc_per_node: str | None = setting(
        None,
        "workers per node: 4, gpu (one per GPU), or 2,1 on two nodes (default: 1, or a job's GPUs)",
    )
    program: Literal["worker", "bench_collectives"] = setting(
        "worker", "what each worker runs: training, or the benchmark of collectives"
    )
    workers: str = setting("torchrun", "what starts workers on a node", files="launch.starters")
    preload: str | None = setting(
        None,
        "what --workers preload imports once per node: torch,transformers (default: torch)",
    )
    hosts: str | None = setting(
        None, "hosts file, CloudLab manifest, or names such as node[0-3],me@other:2222"
    )
    network: str | None = setting(
        None,
        "network for gradients: 10.10.1.0/24 (default: one that all nodes share)",
        affects="sharing",
    )
    master_port: int | None = setting(
        None, "rendezvous port on node 0 (default: a free one)", port=True
    )
    port_range: str | None = setting(
        None, "ports of agents and workers, for a firewall: 20000:20100"
    )
    preflight: bool = setting(True, "check every node before anything starts")
    max_restarts: int = setting(
        0, "how often a run that fails restarts, from its last checkpoint", least=0
    )
    stop_grace_s: float = setting(
        60.0, "seconds for workers to end by themselves when stopped; 0: none", least=0
    )
    hang_after_s: float | None = setting(
        None,
        "seconds without progress: a hang; 0: never (default: 10 x longest pause, at least 60)",
        least=0,
    )
    on_hang: OnHang = setting(
        "warn", "what to do at a hang, besides saying where each rank is: warn, stop, or restart"
    )
    detach: bool = setting(False, "return at once; see muster jobs")
    dry_run: bool = setting(False, "show what would happen, and the commands; run nothing")
    on: str | None = setting(
        None, "cluster in muster.toml whose settings are used; flags take precedence"
    )
    json: bool = setting(False, "for other programs: print events as JSON, one object per line")

    def _problems(self) -> Iterator[str]:
        yield from too_low("nodes", self.least_nodes, 1)
        yield from self._nproc_problems()
        if self.network is not None:
            yield from _network_problems(self.network)
        modules = self.preload or "torch"
        nodes = self.least_nodes if self.nodes is None else self.nodes
        first, last = self.ports or (MIN_PORT, MAX_PORT)
        yield from applying({
            f"--preload {modules} is for --workers preload; here it is {self.workers}":
                self.preload is not None and self.workers != "preload",
            f"--preload {modules!r}: use names of modules, such as torch,transformers":
                not all(part.isidentifier() for part in re.split("[.,]", modules)),
            f"--nodes {nodes}: the first number must be the smaller one": self.least_nodes > nodes,
            f"--nodes must be at most {MAX_NODES} (got {nodes})": nodes > MAX_NODES,
            f"--port-range {self.port_range!r}: use FIRST:LAST, two ports at least, between "
            f"{MIN_PORT} and {MAX_PORT}, such as 20000:20100":
                not MIN_PORT <= first < last <= MAX_PORT,
            "--on-hang restart needs --max-restarts, which is 0; give a number of restarts":
                self.on_hang == "restart" and not self.max_restarts,
        })  # fmt: skip

    def _nproc_problems(self) -> Iterator[str]:
        raw = self.nproc_per_node
        counts = [] if raw is None else raw.split(",")
        if not all(re.fullmatch(r"gpu|-?\d+", count, re.ASCII) for count in counts):
            yield f"--nproc-per-node {raw!r}: use a number, gpu, or a list such as 2,1"
            return
        for count in sorted({*counts} - {"gpu"}):
            yield from too_low("nproc_per_node", int(count), 1)
        if len(counts) > 1 and self.nodes not in (None, len(counts)):
            yield f"--nproc-per-node {raw} is for {len(counts)} nodes, but --nodes is {self.nodes}"

    @property
    def least_nodes(self) -> int:
        """The smallest number of nodes with which a run starts or restarts."""
        if isinstance(self.nodes, Nodes):
            return self.nodes.least
        return 1 if self.nodes is None else self.nodes

    @property
    def ports(self) -> tuple[int, int] | None:
        """The first and last port for agents and workers; None: any port."""
        if self.port_range is None:
            return None
        found = re.fullmatch(r"(\d{1,5}):(\d{1,5})", self.port_range, re.ASCII)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def nproc(self, default: Slots = 1, nodes: int | None = None) -> tuple[Slots, ...]:
        """Workers of each node; `nodes` is used if neither flag says how many nodes there are."""
        counts = [default] if self.nproc_per_node is None else self.nproc_per_node.split(",")
        slots: tuple[Slots, ...] = tuple("gpu" if one == "gpu" else int(one) for one in counts)
        return slots if len(slots) > 1 else slots * (nodes or self.nodes or 1)


@dataclass(frozen=True, kw_only=True)
class SshConfig(Config):
    """How the ssh launcher reaches the nodes, and Muster's folder on them."""

    ssh_config: Path | None = setting(None, "ssh's configuration file (default: ~/.ssh/config)")
    user: str | None = setting(None, "login name, if hosts give none or a manifest has several")
    remote_dir: str | None = setting(
        None,
        "the checkout's folder on the nodes (default: this one if they see it, else ~/muster)",
    )
    setup: bool = setting(False, "make the environment on every node, and run nothing")

    def _problems(self) -> Iterator[str]:
        if self.remote_dir is not None and not is_plain(self.remote_dir):
            yield f"--remote-dir {self.remote_dir!r}: a folder's name has no line breaks"
        if self.user is not None and not re.fullmatch(r"[\w.+][\w.+-]*", self.user, re.ASCII):
            yield f"--user {self.user!r}: use letters, digits, '.', '_', '+' and '-'"


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(Config):
    """Options of sbatch, under sbatch's own names."""

    partition: str | None = setting(None, "where the job waits; sinfo lists them", aliases=["-p"])
    account: str | None = setting(None, "who is charged for the job", aliases=["-A"])
    qos: str | None = setting(None, "quality of service")
    constraint: str | None = setting(None, "features the nodes must have", aliases=["-C"])
    reservation: str | None = setting(None, "reserved nodes to use, by the reservation's name")
    nodelist: str | None = setting(None, "nodes to use", aliases=["-w"])
    exclude: str | None = setting(
        None, "nodes not to use; auto: those that failed twice in seven days", aliases=["-x"]
    )
    time: str | None = setting(
        None,
        "when Slurm ends the job: 30 (minutes), or 1-12:00:00 (default: 60 minutes)",
        aliases=["-t"],
    )
    gpus_per_node: str | None = setting(None, "GPUs per node, such as 4 or a100:4")
    gres: str | None = setting(None, "generic resources per node, such as gpu:4")
    cpus_per_task: int | None = setting(None, "cores per task", aliases=["-c"], least=1)
    mem: str | None = setting(None, "memory per node, such as 16G")
    slurm: str = setting("", "any other option of sbatch, KEY=VALUE; may be repeated", repeats="\n")
    wait: bool = setting(False, "wait, show the workers' output, and end with the job's exit code")

    def _problems(self) -> Iterator[str]:
        for name, value in vars(self).items():
            if isinstance(value, str) and name != "slurm" and not (value and is_plain(value)):
                yield f"--{name.replace('_', '-')} {value!r}: empty, or with line breaks"
        limit = "1" if self.time is None else self.time
        yield from applying({
            f"--time {limit!r} is not a time above 0; use minutes (30), hours:minutes:seconds "
            "(1:30:00) or days-hours (1-12)":
                not TIME.fullmatch(limit) or not re.search("[1-9A-Z]", limit),
            "--gpus-per-node and --gres both ask for GPUs; give one of them":
                self.gpus_per_node is not None and self.gres is not None,
        })  # fmt: skip
        for line in filter(None, self.slurm.split("\n")):
            key, equals, value = line.partition("=")
            if not KEY.fullmatch(key.lstrip("-")) or not is_plain(value):
                yield f"--slurm {line!r}: use KEY=VALUE, such as --slurm mail-type=END"
                continue
            key = key.lstrip("-").replace("_", "-")
            yield from sbatch_options.problems(key, value if equals else None)

    @property
    def more(self) -> dict[str, str | bool]:
        """The options that --slurm gave, by sbatch's own names; True for one without a value."""
        pairs = (line.partition("=") for line in self.slurm.split("\n") if line)
        return {
            key.lstrip("-").replace("-", "_"): value if equals else True
            for key, equals, value in pairs
        }


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """How much of the nodes is checked."""

    quick: bool = setting(False, "check nodes and connections between them; measure nothing")


@dataclass(frozen=True)
class Settings:
    """The arguments of a launcher."""

    launch: LaunchConfig
    ssh: SshConfig
    slurm: SlurmConfig


def is_plain(text: str) -> bool:
    """Whether `text` has no line breaks or other control characters, which options cannot hold."""
    return not any(ord(character) < 32 or ord(character) == 127 for character in text)


def _network_problems(network: str) -> Iterator[str]:
    try:
        ipaddress.ip_network(network)
    except ValueError as error:
        yield f"--network {network!r}: {error}; use a form such as 10.10.1.0/24"
