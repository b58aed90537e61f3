"""Settings of a run of any program: its folder, its machines, and what the program is given."""

import ipaddress
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Self

from configs.settings.fields import (
    MAX_PORT,
    MIN_PORT,
    Config,
    applying,
    setting,
    too_low,
)
from muster.errors import UsageError, refuse
from muster.run_files import own_logs
from muster.terminal import TIP

OnHang = Literal["warn", "stop", "restart"]
Bind = Literal["none", "cores", "socket"]
MAX_NODES = 4096
PORTS = (
    f"expected FIRST:LAST, at least two ports between {MIN_PORT} and {MAX_PORT}, such as "
    "20000:20100"
)
# The launchers of schedulers, each with the command that submits a job: `auto` looks for it.
SCHEDULERS = {"slurm": "sbatch"}
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
LONGEST_NAME = 240  # of a run; a folder name has at most 255 bytes, and we add to the name
PLACEHOLDERS = ("snapshot", "run_dir", "cwd")
# Container engines that --container does not support; --wrap takes their commands.
OTHER_ENGINES = ("docker", "podman", "enroot", "shifter", "sarus")
ADDRESS = re.compile(r"\w+://")  # of an image, such as docker://ubuntu
# Variables that the launcher and torchrun set for workers; the user must not set them.
OURS = frozenset(
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT".split()
)
# All variables that each worker gets, with what to use instead of setting them.
SET_FOR_WORKERS = dict.fromkeys(
    (
        *OURS,
        *("GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
        *("MUSTER_ATTEMPT", "MUSTER_CPUS", "MUSTER_INSPECTION", "MUSTER_AGENT_PID"),
        *("MUSTER_SCRATCH", "MUSTER_STOPPABLE", "MUSTER_STORE_SECRET", "MUSTER_TTY"),
        "MUSTER_TASK_VARIABLES",
    ),
    "leave it out",
) | {
    "MUSTER_CHECKPOINTS": "use --checkpoint-dir",
    "MUSTER_DATA": "use --send",
    "MUSTER_RUN_DIR": "use --logs-dir and --run-id",
    "MUSTER_RUN_ID": "use --run-id",
}
# torchrun reads its settings from these: PET_RDZV_BACKEND is its --rdzv-backend. Each name is
# listed, since PET_DATA may be a user's own variable.
TORCHRUN_FLAGS = (
    "DUPLICATE_STDERR_FILTERS DUPLICATE_STDOUT_FILTERS EVENT_LOG_HANDLER LOCAL_ADDR "
    "LOCAL_RANKS_FILTER LOG_DIR MASTER_ADDR MASTER_PORT MAX_RESTARTS MODULE MONITOR_INTERVAL "
    "NNODES NODE_RANK NO_PYTHON NPROC_PER_NODE RDZV_BACKEND RDZV_CONF RDZV_ENDPOINT RDZV_ID "
    "REDIRECTS ROLE RUN_PATH SHUTDOWN_TIMEOUT SIGNALS_TO_HANDLE STANDALONE START_METHOD TEE "
    "VIRTUAL_LOCAL_RANK"
)
TORCHRUN_VARIABLES = frozenset(f"PET_{name}" for name in TORCHRUN_FLAGS.split())
TORCHELASTIC_PREFIX = "TORCHELASTIC_"


def whole_number(text: str) -> int:
    """Convert `text` to a whole number.

    Raises:
        ValueError: `text` is not a whole number.
    """
    if not re.fullmatch(r"[+-]?\d+", text, re.ASCII):  # int() also takes 1_000, and spaces
        raise ValueError(text)
    return int(text)


# Values of settings that are more than a text or a number. `parse` reads the text of a flag or a
# file, and raises a ValueError if it has the wrong form; `str` returns the text again.
@dataclass(frozen=True)
class NodeCount:
    """A number of nodes; 2:4 is two at least and four at most."""

    FORM = "N or MIN:MAX"
    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Self:
        first, colon, last = text.partition(":")
        least = whole_number(first)
        return cls(least, whole_number(last) if colon else least)

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"


@dataclass(frozen=True)
class WorkersPerNode:
    """The number of a node's workers; None: a worker for each GPU, and these are not counted yet.

    It is written as a number, or gpu.
    """

    number: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(None if text == "gpu" else whole_number(text))

    def __str__(self) -> str:
        return "gpu" if self.number is None else str(self.number)

    def counted(self, gpus: int) -> "WorkersPerNode":
        """The number of workers on a node with this many GPUs."""
        return WorkersPerNode(gpus) if self.number is None else self

    def to_json(self) -> int | str:
        return "gpu" if self.number is None else self.number


ONE_WORKER = WorkersPerNode(1)
ONE_PER_GPU = WorkersPerNode(None)


class PortRange(NamedTuple):
    """The first and the last of some ports; written 20000:20100."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Self:
        ports = re.fullmatch(r"(\d{1,5}):(\d{1,5})", text, re.ASCII)
        if ports is None:
            raise ValueError(text)
        return cls(int(ports[1]), int(ports[2]))

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


@dataclass(frozen=True)
class Variable:
    """A variable for the program; without a value, the launcher's own value is passed on."""

    name: str
    value: str | None = field(default=None, repr=False)  # perhaps a secret

    @classmethod
    def parse(cls, text: str) -> Self:
        name, equals, value = text.partition("=")
        return cls(name, value if equals else None)

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


@dataclass(frozen=True)
class Sending:
    """Data that every node is to have: a folder, and its place on the nodes.

    The place may contain variables of the node, such as $TMPDIR; None: the source's own path.
    """

    FORM = "DIR[:PLACE]"
    source: str
    place: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        source, colon, place = text.partition(":")
        return cls(source, place if colon else None)

    def __str__(self) -> str:
        return self.source if self.place is None else f"{self.source}:{self.place}"


def is_hosts_file(hosts: str, folder: Path = Path()) -> bool:
    """Whether a value of --hosts is a file: it exists, or the text cannot be anything else."""
    # before Python 3.14, Path.is_file() raises for a text that is too long for a file's name
    is_there = os.path.isfile(folder / hosts)  # noqa: PTH113
    return is_there or "/" in hosts or hosts.endswith((".txt", ".xml"))


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """The run's folder, and how long the nodes wait for each other.

    Raises:
        UsageError: on creation; one line for every setting that is wrong.
    """

    run_id: str | None = setting(
        None, "name of the run and its folder (default: time, program, size)"
    )
    logs_dir: Path | None = setting(
        None,
        "folder for run folders (default: logs/ of your project, or of Muster for its trainer)",
    )
    checkpoint_dir: Path | None = setting(
        None, "folder for checkpoints (default: checkpoints/ in the run folder)"
    )
    overwrite: bool = setting(
        False,
        "delete an earlier run's files in the run folder; with --resume, keep its checkpoints",
    )
    join_timeout_s: float = setting(
        300.0, "seconds to wait for all nodes and workers to start", positive=True
    )
    quiet: bool = setting(False, "print errors only", aliases=["-q"])

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
        """The files and folders that the run reads, by the flags that name them."""
        return {}


@dataclass(frozen=True, kw_only=True)
class LaunchConfig(Config):
    """Where the workers start, and how.

    Raises:
        UsageError: on creation; one line for every setting that is wrong.
    """

    launcher: str = setting(
        "auto",
        "auto: ssh with --hosts, slurm if sbatch can reach a cluster, else local",
        files="launch.launchers",
    )
    nodes: NodeCount | None = setting(
        None,
        "number of machines, or a range such as 2:4; simulated if local (default: all, or 1)",
        aliases=["-N"],
    )
    nproc_per_node: tuple[WorkersPerNode, ...] | None = setting(
        None,
        "workers per node: 4, gpu (one per GPU), or 2,1 on two nodes (default: 1, or a job's GPUs)",
        between=",",
        form="expected a number, gpu, or a list such as 2,1",
    )
    program: Literal["worker", "bench_collectives"] = setting(
        "worker", "what each worker runs: training, or a benchmark of collectives"
    )
    workers: str = setting(
        "torchrun", "how workers are started on each node", files="launch.starters"
    )
    preload: str | None = setting(
        None,
        "modules that --workers preload imports once per node: a,b (default: torch)",
    )
    hosts: str | None = setting(
        None,
        "hosts file, CloudLab manifest, or names such as node[0-3],me@other:2222",
        path=is_hosts_file,
    )
    network: str | None = setting(
        None,
        "network for gradients, such as 10.10.1.0/24 (default: one that all nodes share)",
    )
    master_port: int | None = setting(
        None, "rendezvous port on node 0 (default: a free port)", port=True
    )
    port_range: PortRange | None = setting(
        None, "ports that agents and workers may use, for firewalls: 20000:20100", form=PORTS
    )
    send: Sending | None = setting(
        None,
        "copy a folder to every node, to the same path or to PLACE, such as '$TMPDIR'; "
        "$MUSTER_DATA is the path of the copy",
        form="expected DIR, or DIR:PLACE",
        path=lambda text, folder: not text.startswith(":"),
    )
    max_restarts: int = setting(
        0, "how often to restart a failed run, from its last checkpoint", least=0
    )
    stop_grace_s: float = setting(
        60.0, "seconds that workers have to finish when the run is stopped; 0: none", least=0
    )
    hang_after_s: float | None = setting(
        None,
        "seconds without progress that count as a hang; 0: never (default: 10 x longest pause, at "
        "least 60)",
        least=0,
    )
    on_hang: OnHang = setting(
        "warn", "what to do when a run hangs, besides reporting where each rank is"
    )
    bind: Bind | None = setting(
        None,
        "bind each worker to its share of the cores, or to a socket (default: cores in a Slurm "
        "job without GPUs, else none)",
    )
    detach: bool = setting(False, "return at once; follow the run with muster jobs")
    dry_run: bool = setting(False, "show the plan and its commands, but run nothing")
    on: str | None = setting(
        None, "use the settings of this cluster in muster.toml; flags override them"
    )
    json: bool = setting(False, "print events as JSON, one object per line")

    def _problems(self) -> Iterator[str]:
        yield from too_low("nodes", self.least_nodes, 1)
        yield from self._nproc_problems()
        if self.network is not None:
            yield from _network_problems(self.network)
        if self.send is not None:
            yield from _sending_problems(self.send)
        modules = self.preload or "torch"
        nodes = self.nodes or NodeCount(1, 1)
        first, last = self.port_range or (MIN_PORT, MAX_PORT)
        yield from applying([
            (self.preload is not None and self.workers != "preload",
             (f"--preload {modules} needs --workers preload, but --workers is {self.workers}"
              "\ntip: leave it out, or set --workers preload")),
            (not all(part.isidentifier() for part in re.split("[.,]", modules)),
             f"--preload {modules!r}: expected module names, such as torch,transformers"),
            (nodes.least > nodes.most,
             f"--nodes {nodes}: the first number must be the smaller one"),
            (nodes.most > MAX_NODES, f"--nodes must be at most {MAX_NODES} (got {nodes})"),
            (not MIN_PORT <= first < last <= MAX_PORT,
             f"--port-range '{self.port_range}': {PORTS}"),
            (self.on_hang == "restart" and not self.max_restarts,
             "--on-hang restart needs --max-restarts, which is 0\ntip: add --max-restarts 3"),
        ])  # fmt: skip

    def _nproc_problems(self) -> Iterator[str]:
        workers = self.nproc_per_node or ()
        for number in sorted({each.number for each in workers if each.number is not None}):
            yield from too_low("nproc_per_node", number, 1)
        count = len(workers)
        if count > 1 and self.nodes is not None and self.nodes.most != count:
            given = ",".join(map(str, workers))
            yield f"--nproc-per-node {given} is for {count} nodes, but --nodes is {self.nodes}"

    @property
    def least_nodes(self) -> int:
        """The smallest number of nodes with which a run starts or restarts."""
        return 1 if self.nodes is None else self.nodes.least

    @property
    def most_nodes(self) -> int | None:
        """The largest number of nodes that is asked for; None: as many as there are, or one."""
        return None if self.nodes is None else self.nodes.most

    def nproc(
        self, default: WorkersPerNode = ONE_WORKER, nodes: int | None = None
    ) -> tuple[WorkersPerNode, ...]:
        """Workers of each node; `nodes` is used if neither flag says how many nodes there are."""
        workers = self.nproc_per_node or (default,)
        return workers if len(workers) > 1 else workers * (nodes or self.most_nodes or 1)


@dataclass(frozen=True, kw_only=True)
class ProgramConfig(Config):
    """For your own program (after --): its environment, and the copied files.

    Raises:
        UsageError: on creation; one line for every setting that is wrong.
    """

    env: tuple[Variable, ...] = setting(
        (), "set NAME=VALUE for the program, or pass on NAME; may be repeated", repeats=True
    )
    env_file: Path | None = setting(None, "file with NAME=VALUE lines for the program")
    prologue: Path | None = setting(
        None, "shell script to source on each node first: module load, conda activate"
    )
    python: str | None = setting(
        None,
        "Python for the program on the nodes (default: your environment's, else Muster's)",
        path=lambda text, folder: "/" in text,  # any other value is found on PATH
    )
    container: str | None = setting(
        None,
        "image, a file or folder, to run the program in, with apptainer, singularity or ch-run",
        path=lambda text, folder: _is_image_file(text),
    )
    container_mounts: tuple[str, ...] = setting(
        (),
        "more folders to mount in the container, as PATH or HERE:THERE: /data,/scratch",
        repeats=True,
        between=",",
        path=True,
    )
    wrap: str | None = setting(
        None,
        "command to put before each worker's, such as 'nsys profile --output {run_dir}/profile'; "
        "{snapshot}, {run_dir} and {cwd} are replaced",
    )
    snapshot: bool = setting(True, "run a copy of the project as it is now (Slurm and ssh)")
    include: tuple[str, ...] = setting(
        (),
        "pattern for more files to copy into the snapshot; may be repeated",
        repeats=True,
        between="\n",
    )

    def _problems(self) -> Iterator[str]:
        for name in (variable.name for variable in self.env):
            if not VARIABLE_NAME.fullmatch(name):
                yield f"--env {name!r}: expected NAME=VALUE, or NAME to pass on"
            elif name in SET_FOR_WORKERS:
                remedy = SET_FOR_WORKERS[name]
                yield f"--env {name}: the launcher sets this variable for each worker{TIP}{remedy}"
            elif is_setting_of_torchrun(name):
                yield f"--env {name}: Muster sets torchrun's variables itself\ntip: leave it out"
        for option, path in (("--env-file", self.env_file), ("--prologue", self.prologue)):
            if path is not None:
                yield from text_problems(option, path)
        yield from self._container_problems()
        try:
            shlex.split(self.wrap or "")
        except ValueError as error:
            yield f"--wrap {self.wrap}: {error}; it is split into words as in a shell"
        for name in re.findall(r"{(\w*)}", self.wrap or ""):
            if name not in PLACEHOLDERS:
                placeholders = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
                yield f"--wrap: unknown {{{name}}}{TIP}choose from {placeholders}"

    def _container_problems(self) -> Iterator[str]:
        image = self.container
        if image is None:
            if self.container_mounts:
                yield (
                    "--container-mounts needs --container, which is not set"
                    "\ntip: leave it out, or add --container IMAGE"
                )
            return
        name = image.partition(" ")[0]
        if name in OTHER_ENGINES:
            yield f"--container {image}: {name} is not supported{TIP}use --wrap '{name} ...'"
        elif ADDRESS.match(image):
            yield (
                f"--container {image}: expected a file or folder{TIP}make an image file: "
                f"apptainer build image.sif {shlex.quote(image)}"
            )
        elif not _is_image_file(image):
            yield f"--container {image!r}: expected the path of an image"
        for mount in self.container_mounts:
            if not re.fullmatch("/[^:,]*(:/[^:,]*)?", mount):
                yield f"--container-mounts {mount!r}: expected /PATH, or /HERE:/THERE"

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables for the program; write them only where no other user can read them.

        Raises:
            UsageError: a line of the file is wrong, or a variable to pass on is not set.
        """
        values = _read(self.env_file) if self.env_file is not None else {}
        refuse(
            f"{self.env_file}: {name}: the launcher sets this variable itself{TIP}"
            f"{SET_FOR_WORKERS.get(name, 'leave it out')}"
            for name in values
            if name in SET_FOR_WORKERS or is_setting_of_torchrun(name)
        )
        for variable in self.env:
            name = variable.name
            if variable.value is not None:
                values[name] = variable.value
            elif name in env:
                values[name] = env[name]
            else:
                raise UsageError(
                    f"--env {name}: this variable is not set here{TIP}write --env {name}=VALUE"
                )
        return values


def _is_image_file(text: str) -> bool:
    """Whether a value of --container has the form of a path."""
    is_other = ADDRESS.match(text) or text.partition(" ")[0] in OTHER_ENGINES
    return not is_other and text[:1] not in ("", "-")


def scheduler_here() -> str | None:
    """The launcher of the scheduler whose command is on PATH; None if there is none."""
    found = (name for name, command in SCHEDULERS.items() if shutil.which(command))
    return next(found, None)


def text_problems(flag: str, path: Path) -> Iterator[str]:
    """A line if this file cannot be read as text."""
    try:
        if not path.is_file():
            yield f"{flag} {path}: No such file"
            return
        path.read_text(encoding="utf-8")
    except OSError as error:
        yield f"{flag} {path}: {error.strerror}"
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        yield f"{flag} {path}:{line}: not valid UTF-8\ntip: save the file as UTF-8"


def name_problems(flag: str, name: str) -> Iterator[str]:
    """A line if `name` cannot be the name of a run, and so of a folder."""
    plain = name.translate(str.maketrans("", "", "._-+="))
    if not (plain.isascii() and plain.isalnum()) or name.startswith((".", "-")):
        yield (
            f"{flag}{name!r}: use letters, digits, '.', '_', '-', '+' and '=', and do not begin "
            "with '.' or '-'"
        )
    elif len(name) > LONGEST_NAME:
        yield f"{flag}{name!r}: longer than {LONGEST_NAME} characters"


def _read(path: Path) -> dict[str, str]:
    """The variables of an `.env` file in python-dotenv's format; `$` is not expanded."""
    from dotenv.parser import parse_stream  # imported here: workers read no such file

    with path.open(encoding="utf-8-sig") as stream:
        lines = [line for line in parse_stream(stream) if line.key is not None or line.error]
    problems = []
    for line in lines:
        if line.value is None or not VARIABLE_NAME.fullmatch(str(line.key)):
            text = line.original.string
            # `original.line` is the number of the first empty line before it, if any
            empty = text[: len(text) - len(text.lstrip())].count("\n")
            problems.append(f"{path}:{line.original.line + empty}: expected NAME=VALUE")
    refuse(problems)
    return {str(line.key): str(line.value) for line in lines}


def is_setting_of_torchrun(name: str) -> bool:
    return name in TORCHRUN_VARIABLES or name.startswith(TORCHELASTIC_PREFIX)


def without_settings_of_torchrun(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without torchrun's settings, and without variables for workers: Muster sets these.

    With RANK from the user's shell, the torchrun of a run would be taken for that rank.
    """
    return {
        name: value
        for name, value in env.items()
        if name not in OURS and not is_setting_of_torchrun(name)
    }


def _sending_problems(sending: Sending) -> Iterator[str]:
    place = sending.place
    if not sending.source or not str(sending).isprintable():
        yield f"--send {str(sending)!r}: expected DIR, or DIR:PLACE"
    elif place is not None and not place.startswith(("/", "~", "$")):
        yield f"--send {sending}: PLACE must begin with /, ~ or a variable such as $TMPDIR"


def _network_problems(network: str) -> Iterator[str]:
    try:
        ipaddress.ip_network(network)
    except ValueError as error:
        yield f"--network {network!r}: {error}\ntip: write it as in 10.10.1.0/24"
