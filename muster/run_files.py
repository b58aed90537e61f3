"""The run folder: how a run claims it, and who writes, copies and clears each file in it.

Code that writes, reads, mirrors, archives or clears such a file takes its name from here. The names
of `logs/<run_id>/` sort by time. A run never takes the folder of another run.
"""

import functools
import itertools
import os
import re
import time
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from muster import checkout
from muster.errors import UsageError, refuse

# The expression for each pair of braces; numbers have five digits, or no padding.
FIELDS = {"rank": r"\d+", "node": r"\d+", "attempt": r"\d+", "host": r"[^/]+", "name": r"[^/]+"}
WIDTHS = {"rank": "05d", "node": "05d"}
BELOW = "/**"  # a folder with all its content
# The suffix of a file that is being written; in runs of older versions, also the suffix of a file
# that reserved space for a record.
UNFINISHED = re.compile(r"(\.\d+)?\.partial(?=/|\Z)|\.reserved\Z")
LONGEST_PART = 60  # characters of the program's part of a run's name


@dataclass(frozen=True)
class RunFile:
    """A file of a run folder, one file per rank, node or host, or a folder with its content."""

    pattern: str  # below the run folder, such as `metrics/rank_{rank}.jsonl` or `model/**`
    # "attempt": it is moved into attempts/ before the run is restarted
    scope: Literal["run", "attempt"]
    # How a node that does not share the launcher's disk sends it: as it grows, whole after each
    # change, or never (it is written on the launcher's machine, or is used only where it is).
    sent: Literal["growing", "whole", "never"]
    # When --overwrite removes it: always, or unless the new run continues from it (--resume).
    cleared: Literal["always", "unless_resumed"] = "always"
    private: bool = False  # only its owner may read it, since it will be unpickled

    def path(self, run_dir: Path, **fields: int | str) -> Path:
        """The path of the file; for the content of a folder, the path of the folder."""
        words = {name: format(value, WIDTHS.get(name, "")) for name, value in fields.items()}
        return run_dir / self.pattern.removesuffix(BELOW).format(**words)

    def match(self, name: str) -> dict[str, str] | None:
        """The fields in `name`, a path below the run folder; None if `name` is another file."""
        # DOTALL: a name may contain a line break
        match = re.fullmatch(_expression_of(self.pattern), name, re.DOTALL)
        return match.groupdict() if match else None

    def find(self, run_dir: Path) -> list[Path]:
        """The existing files, sorted by name, without unfinished ones."""
        if self.pattern.endswith(BELOW):
            below = sorted(self.path(run_dir).rglob("*"))
            return [path for path in below if path.is_file() and not is_unfinished(path.name)]
        paths = sorted(run_dir.glob(re.sub(r"{\w+}", "*", self.pattern)))
        names = [path.relative_to(run_dir).as_posix() for path in paths]
        return [run_dir / name for name in names if self.match(name) is not None]

    def by_number(self, run_dir: Path) -> dict[int, Path]:
        """The existing file of each rank or node, by the number at the end of its name."""
        pairs = ((int(path.stem.rpartition("_")[2]), path) for path in self.find(run_dir))
        return dict(sorted(pairs))

    @property
    def top(self) -> str:
        """The entry of the run folder that is, or contains, this file."""
        return self.pattern.partition("/")[0]


@functools.cache
def _expression_of(pattern: str) -> str:
    literal = re.escape(pattern.removesuffix(BELOW)).replace(r"\{", "{")
    filled = literal.replace(r"\}", "}").format(
        **{name: f"(?P<{name}>{expression})" for name, expression in FIELDS.items()}
    )
    return filled + ("/.+" if pattern.endswith(BELOW) else "")


# The plan of the run, and which process leads it. Written by the launcher, or by rank 0 if workers
# are started by hand.
CONFIG = RunFile("config.yaml", "run", "never")
LAUNCH = RunFile("launch.json", "run", "never")
LAUNCHER_LOG = RunFile("launcher.log", "run", "never")
JOB = RunFile("job.json", "run", "never")
EXIT = RunFile("exit.json", "attempt", "never")
RECOVERY = RunFile("recovery.json", "attempt", "never")  # of every attempt but the first
SLURM = RunFile("slurm.json", "run", "never")
SUBMITIT = RunFile("submitit/**", "run", "never")
SNAPSHOT = RunFile("snapshot/**", "run", "never")  # of the user's project; see launch/programs/
SNAPSHOT_RECORD = RunFile("snapshot.json", "run", "never")
SNAPSHOT_DIFF = RunFile("snapshot.diff", "run", "never")
SECRETS = RunFile(".program.json", "run", "never")  # the values of --env; only for its owner
FUNCTION = RunFile("function/**", "run", "never")  # the call of muster.launch; only for its owner
# Written by each node's agent, or by the side that starts it.
AGENT = RunFile("agents/node_{node}.json", "attempt", "whole")
AGENT_END = RunFile("agents/node_{node}.exit.json", "attempt", "whole")
AGENT_LOG = RunFile("agents/node_{node}.log", "attempt", "growing")
AGENT_ERRORS = RunFile("agents/node_{node}.err", "attempt", "never")
AWAITED_NODES = RunFile("agents/meeting.json", "attempt", "never")  # nodes that are still missing
LEADER = RunFile("agents/leader-{name}.json", "attempt", "never")  # where srun's tasks find it
SHARED = RunFile("agents/.shared-{name}", "attempt", "never")
# Questions to a run in progress, and its answers; see launch/agent/inspection/.
REQUESTS = RunFile("requests/requests.jsonl", "run", "never")
ANSWER = RunFile("requests/{name}.answer", "run", "never")
STACKS = RunFile("stacks/{name}.json", "attempt", "never")
# Written by each worker, or by the first worker of a host.
OUTPUT = RunFile("workers/rank_{rank}.out", "attempt", "growing")
ERRORS = RunFile("workers/rank_{rank}.err", "attempt", "growing")
METRICS = RunFile("metrics/rank_{rank}.jsonl", "attempt", "growing")
RESULT = RunFile("results/rank_{rank}.pkl", "attempt", "whole", private=True)
RANK_END = RunFile("exits/rank_{rank}.json", "attempt", "whole")
PROFILE = RunFile("profile/rank_{rank}.json", "attempt", "whole")
TRAFFIC = RunFile("traffic/{host}.csv", "attempt", "growing")
ENVIRONMENT = RunFile("environment/{host}.json", "run", "whole")
# Written by rank 0.
TENSORBOARD = RunFile("tensorboard/events{name}", "run", "growing", cleared="unless_resumed")
WANDB = RunFile("wandb/**", "run", "never", cleared="unless_resumed")
SUMMARY = RunFile("summary.json", "run", "whole")
START = RunFile("start.json", "attempt", "whole")  # the time of its first step
STOPPED = RunFile("stopped.json", "attempt", "whole")
MODEL = RunFile("model/**", "run", "whole")
SCORES = RunFile("scores.json", "run", "whole")
PREDICTIONS = RunFile("predictions/{name}.tsv", "run", "whole")  # of samples without labels
NETWORK = RunFile("network.json", "run", "whole")
COLLECTIVES = RunFile("collectives.json", "run", "whole")
# Written by one rank per disk, which also reads them there: they are much larger than the rest.
CHECKPOINTS = RunFile("checkpoints/**", "run", "never", cleared="unless_resumed")
FOLDER_CLAIM = RunFile(".taken", "run", "never")  # by the run that claims the folder, at its start
CLAIMED = RunFile(".claimed-{name}", "run", "never")  # on a disk that is not the launcher's
DISK_PROBE = RunFile(".seen-{name}", "run", "never")  # shows ranks which of them share a disk
# Written by later readers of the run.
PREDICTION = RunFile("prediction.json", "run", "never")  # by older versions
REPORT = RunFile("report/**", "run", "never")
# Files of earlier attempts: the files above with the scope "attempt".
ATTEMPTS = RunFile("attempts/{attempt}/**", "run", "never")

FILES = tuple(value for value in globals().values() if isinstance(value, RunFile))

# In the folder of a study or a sweep; each of its runs has a folder below it.
STUDY = "study.json"
SWEEP = "sweep.json"
SWEEPS = "sweeps"  # the folder of all sweeps, in the folder of all runs
SWEEP_LOCK = ".sweep.lock"  # in the sweep's folder: locked by the process that starts its runs
CANCELLED = "cancelled"  # in the sweep's folder: has a file for each run that must not begin


def matching(name: str) -> RunFile | None:
    """The kind of the file `name`, a path below the run folder, even if unfinished; or None."""
    plain = UNFINISHED.sub("", name)
    return next((file for file in FILES if file.match(plain) is not None), None)


def is_unfinished(name: str) -> bool:
    """Whether a file is still being written, by its `name` without the folder."""
    return UNFINISHED.search(name) is not None


def attempt_folders(run_dir: Path) -> dict[int, Path]:
    """The folder of each earlier attempt, by its number; the first is 0."""
    paths = ATTEMPTS.path(run_dir, attempt=0).parent.glob("*")
    return dict(sorted((int(path.name), path) for path in paths if path.name.isdecimal()))


def archive_attempt(run_dir: Path, attempt: int) -> bool:
    """Move the files of an attempt (0 is the first) into attempts/; false if already done."""
    archive = ATTEMPTS.path(run_dir, attempt=attempt)
    archive.parent.mkdir(parents=True, exist_ok=True)
    try:
        archive.mkdir()  # if several processes try, the first one does it
    except FileExistsError:
        return False
    for name in sorted({file.top for file in FILES if file.scope == "attempt"}):
        if (run_dir / name).exists():
            (run_dir / name).rename(archive / name)
    return True


def clear(run_dir: Path, *, resumed: bool, but: Path | None = None) -> None:
    """Remove a run's files, except `but`; with `resumed`, keep the files that a run continues from.

    Raises:
        OSError: something cannot be removed.
    """
    doomed = [path for path in _to_clear(run_dir, resumed=resumed) if path != but]
    for path in doomed:
        path.unlink()
    for folder in sorted({parent for path in doomed for parent in path.parents}, reverse=True):
        if run_dir in folder.parents and not any(folder.iterdir()):
            folder.rmdir()


def clears(run_dir: Path, path: Path, *, resumed: bool) -> bool:
    """Whether `clear` would remove `path`, or something in it; a parent folder does not count."""
    return path not in run_dir.parents and any(
        cleared == path or path in cleared.parents
        for cleared in _to_clear(run_dir, resumed=resumed)
    )


def _to_clear(run_dir: Path, *, resumed: bool) -> Iterator[Path]:
    for folder, folders, names in os.walk(run_dir):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in (*names, *links):
            path = Path(folder, name)
            file = matching(path.relative_to(run_dir).as_posix())
            if file is not None and not (resumed and file.cleared == "unless_resumed"):
                yield path


def project_of(cwd: Path) -> Path:
    """The user's project to which the runs of `cwd` belong: git's top folder, else `cwd` itself."""
    from muster import git  # imported here: workers only name files, and start nothing

    top = git.top_of(cwd)
    return cwd if top is None else git.top_seen(cwd, top)


def own_logs() -> Path:
    """The folder for the trainer's run folders: `logs/` of the checkout.

    An installation has no `logs/`. Its runs go to `logs/` of the project in which it is called, as
    for a user's program.
    """
    return (project_of(Path.cwd()) if checkout.IS_INSTALLED else checkout.CHECKOUT) / "logs"


def plain_name(text: str) -> str:
    """Make a part of a run's name of `text`: ASCII letters, digits, '.', '_' and '-'; or empty."""
    letters = unicodedata.normalize("NFKD", text)  # an accent then follows its letter
    plain = re.sub(r"[^\w.-]", "-", re.sub(r"[\u0300-\u036f]", "", letters), flags=re.ASCII)
    return plain.strip("-").lstrip(".-")[:LONGEST_PART]


def state_folder(env: Mapping[str, str]) -> Path:
    """The folder with the records of this user's runs and failed nodes.

    Raises:
        RuntimeError: the user has no home folder, as in some containers.
    """
    return Path(env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "muster")


def new_run_id(logs: Path, what: str, size: str, *, make: bool = False) -> str:
    """A new id such as `20260821-143000-rte-ddp-4x1`, with a suffix if `logs` has this one already.

    With `make` the run's folder is made here, so that no run that starts at the same time takes it
    too.

    Raises:
        UsageError: the folder cannot be made.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{what}-{size}"
    for run_id in itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2))):
        run_dir = logs / run_id
        with _usable(run_dir), suppress(FileExistsError):
            if make:
                run_dir.mkdir(parents=True)
            if make or not run_dir.exists():
                break
    return run_id


def claim(run_dir: Path, inputs: Mapping[str, Path], *, overwrite: bool, resumed: bool) -> None:
    """Make `run_dir` for a single run; `overwrite` removes an earlier run's files.

    Checkpoints stay if the new run is `resumed` from one. `inputs`: the paths that the run reads,
    by flag.

    Raises:
        UsageError: it is not empty and must not be cleared, clearing it would remove files that the
            run reads, or it cannot be made.
    """
    refuse(
        f"--overwrite would delete {path}, which {flag} needs\ntip: use another --run-id"
        for flag, path in inputs.items()
        if overwrite and path.exists() and clears(run_dir.absolute(), path, resumed=resumed)
    )
    with _usable(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        _clear(run_dir, overwrite=overwrite, resumed=resumed)
        try:
            FOLDER_CLAIM.path(run_dir).touch(exist_ok=False)
        except FileExistsError:  # another run has started at the same moment
            raise UsageError(_not_empty(run_dir)) from None


def claim_on_node(run_dir: Path, start: str, *, overwrite: bool, resumed: bool) -> None:
    """Claim `run_dir`, like `claim`, on a disk that the launcher does not see.

    Nodes that share the disk call this at the same time. The first one leaves a mark named after
    this `start` of the run, and clears the folder for all of them. Workers start only after every
    node has called this.

    Raises:
        UsageError: it has files of another run that must not be cleared, or it cannot be made.
    """
    mark = CLAIMED.path(run_dir, name=start)
    with _usable(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            mark.touch(exist_ok=False)
            _clear(run_dir, overwrite=overwrite, resumed=resumed, but=mark)


def _clear(run_dir: Path, *, overwrite: bool, resumed: bool, but: Path | None = None) -> None:
    if overwrite:
        clear(run_dir, resumed=resumed, but=but)
    elif any(path != but for path in run_dir.iterdir()):
        raise UsageError(_not_empty(run_dir))


def _not_empty(run_dir: Path) -> str:
    return f"run folder {run_dir} is not empty\ntip: use --overwrite or another --run-id"


@contextmanager
def _usable(run_dir: Path) -> Iterator[None]:
    """Refuse the run folder if the disk reports an error."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"run folder {run_dir}: {error.strerror}\ntip: choose another --logs-dir"
        ) from None
