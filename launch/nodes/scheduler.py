"""The contract of a scheduler such as Slurm: what a run inside one of its jobs needs to know.

Each scheduler has a class that is derived from `SchedulerJob`. An object of this class is the job
that the leader's process is in. The leader asks it for:

    the nodes             `nodes`, `gpus`; after a failure `silent_nodes`
    an agent on each      `command` starts them, `killed_early` watches them until they connect
    the end of its time   `end_unix_s`; before that, the scheduler sends one of `NOTICE_SIGNALS`
    requeueing            `attempt`, `is_running`, `requeue`

Agents have no such object. They use only the class, which names the scheduler's variables and
describes workers as if the scheduler had started them. The scheduler has no part in the proof by
which leader and agents recognise each other: see launch/in_job/job_connection.py.
"""

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Self

from configs.settings.launch import LaunchConfig
from launch.spec import Assignment
from muster.rank_variables import JOBS, SCHEDULER


@dataclass(frozen=True, kw_only=True)
class SchedulerJob(ABC):
    """The job that this process is in; each scheduler derives its own class."""

    launcher: ClassVar[str]  # the name of the scheduler's launcher, in the records of runs
    # The commands that show a user why agents do not start.
    shown_by: ClassVar[str]
    # Variables of each process that `command` starts: its number among these processes, from 0, in
    # the order of their nodes; the name of its node; an address of the machine that started it.
    index_variable: ClassVar[str]
    node_variable: ClassVar[str]
    origin_variable: ClassVar[str]
    # The variable with the number of CPUs that a job may use on a node; "": the scheduler has none.
    cpus_variable: ClassVar[str] = ""
    # The variables for each worker's rank and local rank.
    rank_variables: ClassVar[tuple[str, ...]] = ()

    job_id: str
    name: str  # the job's name in the records of runs; for an array's part, with that part
    num_nodes: int
    gpus: int = 0  # on each node
    attempt: int = 0  # how often the job was requeued
    cluster: str | None = None  # its name, which distinguishes this job 12 from another cluster's
    # for `command`, and for all other requests to the scheduler
    env: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False, compare=False)

    @classmethod
    @abstractmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """The job of the process with this environment, which must be a job's environment."""

    @property
    @abstractmethod
    def nodes(self) -> Sequence[str]:
        """The names of its nodes; the leader is on the first node, if the job is the run's own."""

    @property
    def folder(self) -> Path:
        """The folder from which the job was submitted."""
        return Path()

    @property
    def output(self) -> str:
        """The file for the batch script's output; "" if it is unknown."""
        return ""

    def problems(self) -> Iterable[str]:
        """A line for each reason why a run cannot use the job."""
        return ()

    def notes(self, launch: LaunchConfig) -> Iterable[str]:
        """A line for each part of the job that a run with these settings would not use."""
        return ()

    @abstractmethod
    def command(self, hosts: Sequence[str], argv: Sequence[str], step: str) -> list[str]:
        """A command that runs `argv` on each of these nodes, and ends after all these processes.

        The processes have the command's stdin, stdout and stderr. If the scheduler names what is
        started, the name is `step`. If one of the processes is lost, the others continue.
        """

    @abstractmethod
    def killed_early(
        self, command: "subprocess.Popen[bytes]", log: Path, count: int
    ) -> Iterable[int]:
        """The numbers of a `command`'s processes that were killed, and will never connect.

        `log` is the output of the command, which has started `count` processes.

        Raises:
            MusterError: a process will not connect to its leader for another reason, which the
                message gives.
        """

    @abstractmethod
    def silent_nodes(self, hosts: Sequence[str]) -> list[str]:
        """The nodes among these that do not answer."""

    @abstractmethod
    def end_unix_s(self) -> float | None:
        """When the job's time is over; None if that is unknown."""

    @abstractmethod
    def is_running(self) -> bool:
        """Whether the job may be requeued: as far as is known, it has not been cancelled."""

    @abstractmethod
    def requeue(self, excluded: str | None) -> None:
        """Requeue the job, which ends this process.

        `excluded`: the nodes that the job must not get; None: the same as when it was submitted.

        Raises:
            MusterError: the scheduler refuses, or does not answer.
        """

    @classmethod
    def worker_variables(cls, assignment: Assignment, env: Mapping[str, str]) -> dict[str, str]:
        """The variables that the scheduler would set for a node's workers if it had started them.

        `env` is their agent's environment. `rank_variables` are not included, since they differ
        between workers; they are set only if this returns any variables.
        """
        return {}


def job_class(env: Mapping[str, str]) -> type[SchedulerJob] | None:
    """The class of the job that a process with this environment is in; None if it is in no job."""
    known = (place for variable, place in JOBS.items() if place and env.get(variable))
    place = env.get(SCHEDULER) or next(known, None)
    return class_at(place) if place else None


def class_at(place: str) -> type[SchedulerJob]:
    """The class at a place such as `launch.slurm.current_job:CurrentJob`."""
    module, _, name = place.partition(":")
    found: type[SchedulerJob] = getattr(import_module(module), name)
    return found
