"""Settings of a run of any program: its folder, its machines, and what the program is given."""

import ipaddress
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from configs.settings.fields import (
    MAX_PORT,
    MIN_PORT,
    Config,
    applying,
    flag,
    neutral,
    setting,
    too_low,
)
from muster import run_files
from muster.errors import UsageError, refuse
from muster.run_files import own_logs

Slots = int | Literal["gpu"]  # workers of a node; "gpu": one for each of its GPUs
OnHang = Literal["warn", "stop", "restart"]
MAX_NODES = 4096
BETWEEN = "\0"  # between variables: a character that no variable can hold
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
LONGEST_NAME = 240  # of a run; a folder's name has at most 255 bytes, and ours add to it
PLACEHOLDERS = ("snapshot", "run_dir", "cwd")
# Variables that launcher and torchrun set for workers, which the user must not set.
OURS = frozenset(
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT".split()
)
# torchrun reads its settings from these: PET_RDZV_BACKEND is its --rdzv-backend. They are named one
# by one: PET_DATA may be a user's own, who has pictures of pets, or from PET scanners.
TORCHRUN_FLAGS = (
    "DUPLICATE_STDERR_FILTERS DUPLICATE_STDOUT_FILTERS EVENT_LOG_HANDLER LOCAL_ADDR "
    "LOCAL_RANKS_FILTER LOG_DIR MASTER_ADDR MASTER_PORT MAX_RESTARTS MODULE MONITOR_INTERVAL "
    "NNODES NODE_RANK NO_PYTHON NPROC_PER_NODE RDZV_BACKEND RDZV_CONF RDZV_ENDPOINT RDZV_ID "
    "REDIRECTS ROLE RUN_PATH SHUTDOWN_TIMEOUT SIGNALS_TO_HANDLE STANDALONE START_METHOD TEE "
    "VIRTUAL_LOCAL_RANK"
)
OF_TORCHRUN = frozenset(f"PET_{name}" for name in TORCHRUN_FLAGS.split())
OF_TORCHELASTIC = "TORCHELASTIC_"


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
class RunConfig(Config):
    """The run's folder, and how long the nodes wait for each other.

    Raises:
        UsageError: on creation; one line for every setting that is wrong.
    """

    run_id: str | None = neutral(None, "name of the run folder (default: time, program, size)")
    logs_dir: Path | None = neutral(
        None, "where run folders go (default: logs/ of this checkout, or of your program's project)"
    )
    checkpoint_dir: Path | None = neutral(
        None, "where checkpoints go (default: checkpoints/ of the run folder)"
    )
    overwrite: bool = neutral(
        False, "remove an earlier run's files from the run folder (not checkpoints, with --resume)"
    )
    join_timeout_s: float = neutral(
        300.0, "seconds within which all workers and nodes must have started", positive=True
    )
    quiet: bool = neutral(False, "print errors only", aliases=["-q"])

    def _problems(self) -> Iterator[str]:
        if self.run_id is not None:
            yield from name_problems("--run-id ", self.run_id)

    @property
    def logs_root(self) -> Path:
        """The folder that holds the run folders."""
        return self.logs_dir if self.logs_dir is not None else own_logs()

    @property
    def is_resumed(self) -> bool:
        """Whether the run continues from a checkpoint, as far as is known before it starts."""
        return False

    def inputs(self) -> dict[str, Path]:
        """The files and folders that it reads, by the settings that name them."""
        return {}

    def with_id(self, what: str, size: str, *, make: bool) -> Self:
        """The run with an id, which is made up where it has none; with `make`, its folder is made.

        Raises:
            UsageError: the folder is in use, or cannot be made.
        """
        if self.run_id is None:
            return replace(self, run_id=run_files.new_run_id(self.logs_root, what, size, make=make))
        if make:
            self.claim()
        return self

    def claim(self) -> None:
        """Make the run's folder for this run alone; see `run_files.claim`."""
        run_files.claim(
            self.logs_root / str(self.run_id),
            {flag(name): path for name, path in self.inputs().items()},
            overwrite=self.overwrite,
            resumed=self.is_resumed,
        )


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
class ProgramConfig(Config):
    """For your own program (after --): its environment, and the copied files.

    Raises:
        UsageError: on creation; one line for every setting that is wrong.
    """

    env: str = setting(
        "", "NAME=VALUE for the program, or NAME to pass on; may be repeated", repeats=BETWEEN
    )
    env_file: Path | None = setting(None, "file of NAME=VALUE lines for the program")
    prologue: Path | None = setting(
        None, "shell script that each node sources first: module load, conda activate"
    )
    python: str | None = setting(
        None, "Python of the program on the nodes (default: your environment, else Muster's)"
    )
    wrap: str | None = setting(
        None,
        "command in front of each worker, such as 'apptainer exec --bind {snapshot},{run_dir} "
        "image.sif'; {snapshot}, {run_dir} and {cwd} are filled in",
    )
    snapshot: bool = setting(True, "on Slurm and over ssh run a copy of the project as it is now")
    include: str = setting(
        "", "pattern of more files to copy into the snapshot; may be repeated", repeats="\n"
    )

    def _problems(self) -> Iterator[str]:
        for line in filter(None, self.env.split(BETWEEN)):
            name = line.partition("=")[0]
            if not NAME.fullmatch(name):
                yield f"--env {name!r}: use NAME=VALUE, or NAME to pass on"
            elif name in OURS:
                yield f"--env {name}: the launcher sets this variable for each worker; leave it out"
            elif is_setting_of_torchrun(name):
                yield f"--env {name}: a setting of torchrun, which Muster gives it; leave it out"
        for option, path in (("--env-file", self.env_file), ("--prologue", self.prologue)):
            if path is not None:
                yield from _text_problems(option, path)
        try:
            shlex.split(self.wrap or "")
        except ValueError as error:
            yield f"--wrap {self.wrap}: {error}; it is split into words as a shell does it"
        for name in re.findall(r"{(\w*)}", self.wrap or ""):
            if name not in PLACEHOLDERS:
                known = ", ".join(f"{{{one}}}" for one in PLACEHOLDERS)
                yield f"--wrap: unknown {{{name}}}; known: {known}"

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables for the program; they must not be written where other users can read them.

        Raises:
            UsageError: a line of the file is wrong, or a variable to pass on is not set.
        """
        found = _read(self.env_file) if self.env_file is not None else {}
        refuse(
            f"{self.env_file}: {name}: the launcher sets this variable itself; leave it out"
            for name in found
            if name in OURS or is_setting_of_torchrun(name)
        )
        for line in filter(None, self.env.split(BETWEEN)):
            name, equals, value = line.partition("=")
            if not equals and name not in env:
                raise UsageError(f"--env {name}: it is not set here; give it as {name}=VALUE")
            found[name] = value if equals else env[name]
        return found

    @property
    def patterns(self) -> list[str]:
        """The patterns that --include gave."""
        return [one for one in self.include.split("\n") if one]


def _text_problems(flag: str, path: Path) -> Iterator[str]:
    if not path.is_file():
        yield f"{flag} {path}: no such file"
        return
    try:
        path.read_text(encoding="utf-8")
    except OSError as error:
        yield f"{flag} {path}: {error.strerror}"
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        yield f"{flag} {path}:{line}: not UTF-8; save it in that encoding"


def name_problems(flag: str, name: str) -> Iterator[str]:
    """A line if `name` cannot be that of a run, and so of a folder."""
    plain = name.translate(str.maketrans("", "", "._-+="))
    if not (plain.isascii() and plain.isalnum()) or name.startswith((".", "-")):
        yield f"{flag}{name!r}: use letters, digits, '.', '_', '-', '+' and '='"
    elif len(name) > LONGEST_NAME:
        yield f"{flag}{name!r}: at most {LONGEST_NAME} characters"


def _read(path: Path) -> dict[str, str]:
    """The variables of an `.env` file in the form of python-dotenv; `$` is not expanded."""
    from dotenv.parser import parse_stream  # here: workers read no such file

    with path.open(encoding="utf-8-sig") as stream:
        found = [one for one in parse_stream(stream) if one.key is not None or one.error]
    problems = []
    for one in found:
        if one.value is None or not NAME.fullmatch(str(one.key)):
            text = one.original.string
            # its line is counted from the end of the one before, and empty lines may lie
            # between
            empty = text[: len(text) - len(text.lstrip())].count("\n")
            problems.append(f"{path}:{one.original.line + empty}: not NAME=VALUE")
    refuse(problems)
    return {str(one.key): str(one.value) for one in found}


def is_setting_of_torchrun(name: str) -> bool:
    return name in OF_TORCHRUN or name.startswith(OF_TORCHELASTIC)


def without_settings_of_torchrun(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without what would change the torchrun of a run, which has its settings from us."""
    return {name: value for name, value in env.items() if not is_setting_of_torchrun(name)}


def _network_problems(network: str) -> Iterator[str]:
    try:
        ipaddress.ip_network(network)
    except ValueError as error:
        yield f"--network {network!r}: {error}; use a form such as 10.10.1.0/24"
