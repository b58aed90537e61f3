"""Settings of the launchers whose nodes are other machines: how ssh and Slurm reach them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Self

from configs.settings import sbatch_options
from configs.settings.fields import Config, applying, setting
from configs.settings.launch import LaunchConfig

DEFAULT_TIME = "60"  # minutes of a job whose time limit is not set
# In the forms of `man sbatch`: minutes, minutes:seconds, hours:minutes:seconds, with days first.
TIME = re.compile(r"(\d+-\d+(:\d+){0,2}|\d+(:\d+){0,2}|UNLIMITED|INFINITE)", re.ASCII)
OPTION_NAME = re.compile(r"[a-z][a-z0-9-]*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class SbatchOption:
    """An option of sbatch by its own name, such as mail-type; some have no value."""

    name: str
    value: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        key, equals, value = text.partition("=")
        return cls(key.replace("_", "-").lstrip("-"), value if equals else None)

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


@dataclass(frozen=True, kw_only=True)
class SshConfig(Config):
    """How the ssh launcher reaches the nodes, and Muster's folder on them."""

    ssh_config: Path | None = setting(
        None,
        "ssh configuration file (default: ~/.ssh/config)",
        path=lambda text, folder: text != "none",  # ssh's own word for no file
    )
    user: str | None = setting(None, "user name, if --hosts gives none or a manifest has several")
    remote_dir: str | None = setting(
        None,
        "Muster's folder on the nodes (default: the same as here if it is shared, else ~/muster)",
    )
    setup: bool = setting(False, "set up the environment on every node, and run nothing")

    def _problems(self) -> Iterator[str]:
        if self.remote_dir is not None and not is_plain(self.remote_dir):
            yield f"--remote-dir {self.remote_dir!r}: it must not contain line breaks"
        if self.user is not None and not re.fullmatch(r"[\w.+][\w.+-]*", self.user, re.ASCII):
            yield f"--user {self.user!r}: use letters, digits, '.', '_', '+' and '-'"


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(Config):
    """Options of sbatch, under sbatch's own names."""

    partition: str | None = setting(
        None,
        "partition of the job; with several (a,b), the first that can start it",
        aliases=["-p"],
        between=",",
    )
    account: str | None = setting(None, "account to charge for the job", aliases=["-A"])
    exclude: str | None = setting(
        None, "nodes to avoid; auto: nodes that failed twice within seven days", aliases=["-x"]
    )
    time: str | None = setting(
        None,
        "time limit of the job: 30 (minutes), or 1-12:00:00 (default: 60 minutes)",
        aliases=["-t"],
    )
    gpus_per_node: str | None = setting(None, "GPUs per node, such as 4 or a100:4")
    gres: str | None = setting(None, "generic resources per node, such as gpu:4")
    cpus_per_task: int | None = setting(None, "cores per task", aliases=["-c"], least=1)
    mem: str | None = setting(None, "memory per node, such as 16G")
    slurm: tuple[SbatchOption, ...] = setting(
        (),
        "any other sbatch option, such as qos=high; may be repeated",
        repeats=True,
        between="\n",
        adds=True,
    )
    wait: bool = setting(False, "wait for the job, show its output, and exit with its exit code")

    def _problems(self) -> Iterator[str]:
        for name, value in vars(self).items():
            if isinstance(value, str) and not (value and is_plain(value)):
                given = f"--{name.replace('_', '-')} {value!r}"
                yield f"{given}: it must not be empty or contain line breaks"
        limit = "1" if self.time is None else self.time
        yield from applying([
            (not TIME.fullmatch(limit) or not re.search("[1-9A-Z]", limit),
             (f"--time {limit!r} is not a time limit above 0"
              "\ntip: use minutes (30), hours:minutes:seconds (1:30:00) or days-hours (1-12)")),
            (self.gpus_per_node is not None and self.gres is not None,
             "--gpus-per-node and --gres both ask for GPUs\ntip: give one of them"),
            ("," in (self.account or ""),
             (f"--account {self.account}: a job has one account\ntip: give one account, and "
              "partitions that it may use")),
        ])  # fmt: skip
        with_flag = {item.name.replace("_", "-") for item in fields(self)} - {"slurm"} | {"nodes"}
        for option in self.slurm:
            if OPTION_NAME.fullmatch(option.name) and is_plain(option.value or ""):
                yield from sbatch_options.problems(option.name, option.value, with_flag)
            else:
                yield f"--slurm {str(option)!r}: {sbatch_options.FORM}"


@dataclass(frozen=True, kw_only=True)
class LoginConfig:
    """How the login node of a cluster is reached from another machine."""

    login: str
    login_config: str | None = field(default=None, metadata={"path": lambda text, folder: True})
    login_dir: str | None = None
    login_python: str | None = None


@dataclass(frozen=True)
class Settings:
    """The arguments of a launcher."""

    launch: LaunchConfig
    ssh: SshConfig
    slurm: SlurmConfig


def is_plain(text: str) -> bool:
    """Whether `text` has no line breaks or other control characters, which options cannot hold."""
    return not any(ord(character) < 32 or ord(character) == 127 for character in text)
