"""What holds for a run of any program, and what one of the user's needs beside its arguments."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from configs import plugins
from configs.settings.fields import Config, neutral, setting
from muster.errors import UsageError, refuse

BETWEEN = "\0"  # variables: what no variable can hold
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
PLACEHOLDERS = ("snapshot", "run_dir", "cwd")
# What launcher and torchrun tell workers is not for the user to set.
OURS = frozenset(
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT".split()
)


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """Where a run of any program is kept, and how long its nodes wait for each other.

    Raises:
        UsageError: on creation; one line for every setting that is wrong.
    """

    run_id: str | None = neutral(None, "name of the run folder (default: time, what runs, size)")
    logs_dir: Path | None = neutral(
        None, "where run folders go (default: logs/ of this checkout, or of your program's project)"
    )
    checkpoint_dir: Path | None = neutral(
        None, "where checkpoints go (default: checkpoints/ of the run folder)"
    )
    overwrite: bool = neutral(
        False, "clear the run folder of an earlier run (its checkpoints stay with --resume)"
    )
    join_timeout_s: float = neutral(
        300.0, "seconds that workers and nodes may take to come", positive=True
    )
    quiet: bool = neutral(False, "print errors only", aliases=["-q"])

    def _problems(self) -> Iterator[str]:
        if self.run_id is not None and not _is_name(self.run_id):
            yield f"--run-id {self.run_id!r}: use letters, digits, '.', '_', '-', '+' and '='"

    @property
    def logs_root(self) -> Path:
        """The folder that holds the run folders."""
        return self.logs_dir if self.logs_dir is not None else plugins.REPOSITORY / "logs"

    @property
    def is_resumed(self) -> bool:
        """Whether it goes on from a checkpoint, as far as that is known before it starts."""
        return False

    def inputs(self) -> dict[str, Path]:
        """The files and folders that it reads, by the settings that name them."""
        return {}


@dataclass(frozen=True, kw_only=True)
class ProgramConfig(Config):
    """What your own program (after --) needs on the nodes; its arguments follow its name.

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
        "", "pattern of files that the snapshot takes as well; may be repeated", repeats="\n"
    )

    def _problems(self) -> Iterator[str]:
        for line in filter(None, self.env.split(BETWEEN)):
            name = line.partition("=")[0]
            if not NAME.fullmatch(name):
                yield f"--env {name!r}: use NAME=VALUE, or NAME to pass on"
            elif name in OURS:
                yield f"--env {name}: that is what the launcher tells each worker"
        for flag, path in (("--env-file", self.env_file), ("--prologue", self.prologue)):
            if path is not None:
                yield from _text_problems(flag, path)
        for name in re.findall(r"{(\w*)}", self.wrap or ""):
            if name not in PLACEHOLDERS:
                known = ", ".join(f"{{{one}}}" for one in PLACEHOLDERS)
                yield f"--wrap: unknown {{{name}}}; known: {known}"

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables for the program, of which nothing may be written where others read it.

        Raises:
            UsageError: a line of the file is none, or a variable to pass on is not set.
        """
        found = _read(self.env_file) if self.env_file is not None else {}
        for line in filter(None, self.env.split(BETWEEN)):
            name, equals, value = line.partition("=")
            if not equals and name not in env:
                raise UsageError(f"--env {name}: it is not set here; give it as {name}=VALUE")
            found[name] = value if equals else env[name]
        return found

    @property
    def patterns(self) -> list[str]:
        """What --include gave."""
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


def _is_name(text: str) -> bool:
    plain = text.translate(str.maketrans("", "", "._-+="))
    return plain.isascii() and plain.isalnum() and not text.startswith((".", "-"))


def _read(path: Path) -> dict[str, str]:
    """The variables of an `.env` file, as python-dotenv has its form; a `$` stays a `$`."""
    from dotenv.parser import parse_stream  # here: workers read settings, too, and no such file

    found, problems = {}, []
    with path.open(encoding="utf-8") as stream:
        for binding in parse_stream(stream):
            if binding.key is None and not binding.error:  # a comment, or the end
                continue
            if binding.value is None or not NAME.fullmatch(str(binding.key)):
                text = binding.original.string
                # it counts from the end of the one before, and there may be empty lines between
                empty = text[: len(text) - len(text.lstrip())].count("\n")
                problems.append(f"{path}:{binding.original.line + empty}: not NAME=VALUE")
                continue
            found[str(binding.key)] = binding.value
    refuse(problems)
    return found
