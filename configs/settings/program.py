"""The settings of a run of any program, with its folder; and those of the user's own program.

The names of `logs/<run_id>/` sort by time. A run never takes the folder of another run.
"""

import itertools
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from configs.settings.fields import Config, flag, neutral, setting
from muster import run_files
from muster.errors import UsageError, refuse
from muster.run_files import own_logs

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


def is_setting_of_torchrun(name: str) -> bool:
    return name in OF_TORCHRUN or name.startswith(OF_TORCHELASTIC)


def without_settings_of_torchrun(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without what would change the torchrun of a run, which has its settings from us."""
    return {name: value for name, value in env.items() if not is_setting_of_torchrun(name)}


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


Run = TypeVar("Run", bound=RunConfig)


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


def new_run_id(run: RunConfig, what: str, size: str, *, make: bool = False) -> str:
    """`20260821-143000-rte-ddp-4x1`, with a suffix if that one exists.

    With `make` its folder is made here, so that no run that starts at once takes it too.

    Raises:
        UsageError: the folder cannot be made.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{what}-{size}"
    for run_id in itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2))):
        run_dir = run.logs_root / run_id
        with _usable(run_dir), suppress(FileExistsError):
            if make:
                run_dir.mkdir(parents=True)
            if make or not run_dir.exists():
                break
    return run_id


def with_id(run: Run, what: str, size: str, *, make: bool) -> Run:
    """The run with an id, which is made up where it has none; with `make`, its folder is made, too.

    Raises:
        UsageError: the folder is in use, or cannot be made.
    """
    if run.run_id is None:
        return replace(run, run_id=new_run_id(run, what, size, make=make))
    if make:
        claim(run.logs_root / run.run_id, run)
    return run


def claim(run_dir: Path, run: RunConfig) -> None:
    """Make `run_dir`, once, however many ask for it; --overwrite removes an earlier run's files.

    Checkpoints stay if the new run is to continue from one.

    Raises:
        UsageError: it is not empty and must not be cleared, the run would read files in it, or it
            cannot be made.
    """
    resumed = run.is_resumed
    with _usable(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        refuse(
            f"--overwrite would remove {path}, which {flag(name)} names; use another --run-id"
            for name, path in run.inputs().items()
            if run.overwrite and path.exists()
            if run_files.clears(run_dir.absolute(), path, resumed=resumed)
        )
        _clear(run_dir, overwrite=run.overwrite, resumed=resumed)
        try:
            run_files.TAKEN.path(run_dir).touch(exist_ok=False)
        except FileExistsError:  # by one that has started at the same moment
            raise UsageError(_not_empty(run_dir)) from None


def claim_on_node(run_dir: Path, start: str, *, overwrite: bool, resumed: bool) -> None:
    """Like `claim`, on a disk that the launcher does not see.

    Nodes that share the disk come at the same time. The first one leaves a mark with the name of
    this `start` of the run, and clears the folder for all. Workers start after every node has been
    here.

    Raises:
        UsageError: files of another run are in it and must not be cleared; or it cannot be made.
    """
    mark = run_files.CLAIMED.path(run_dir, name=start)
    with _usable(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            mark.touch(exist_ok=False)
            _clear(run_dir, overwrite=overwrite, resumed=resumed, but=mark)


def _clear(run_dir: Path, *, overwrite: bool, resumed: bool, but: Path | None = None) -> None:
    if overwrite:
        run_files.clear(run_dir, resumed=resumed, but=but)
    elif any(path != but for path in run_dir.iterdir()):
        raise UsageError(_not_empty(run_dir))


def _not_empty(run_dir: Path) -> str:
    return f"run folder {run_dir} is not empty; use --overwrite or another --run-id"


@contextmanager
def _usable(run_dir: Path) -> Iterator[None]:
    """Refuse a folder that the disk refuses."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"run folder {run_dir}: {error.strerror}; choose another --logs-dir"
        ) from None
