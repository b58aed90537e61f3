"""The contract of a scheduler, such as Slurm: what a run inside one of its jobs needs to know.

Each scheduler has a class that is derived from `SchedulerJob`. The leader of a run asks an object
of this class, the job that its process is in:

    the nodes             `nodes`, `gpus`; after a failure `silent_nodes`
    an agent on each      `command` starts them, `killed_early` looks after them until they connect
    the end of its time   `end_unix_s`; before, the scheduler sends a signal of `NOTICE_SIGNALS`
    requeueing            `attempt`, `is_running`, `requeue`

Agents have no such object, but the class, which names the scheduler's variables, and describes
workers as if the scheduler had started them. The scheduler has no part in the proof by which leader
and agents recognise each other: see launch/in_job/job_connection.py.
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
    """The job that this process is in; each scheduler derives a class of its own."""

    launcher: ClassVar[str]  # the name of the scheduler's launcher, in the records of runs
    # The commands by which a user sees why agents do not start.
    shown_by: ClassVar[str]
    # The variables that each process of `command` has: its number among these, from 0, in the order
    # of their nodes; the name of its node; an address of the machine that has started it.
    index_variable: ClassVar[str]
    node_variable: ClassVar[str]
    origin_variable: ClassVar[str]
    # The variable with the number of CPUs that a job may use on a node; "": the scheduler has none.
    cpus_variable: ClassVar[str] = ""
    # The variables that are to have the rank and the local rank of each worker.
    rank_variables: ClassVar[tuple[str, ...]] = ()

    job_id: str
    name: str  # by which the records of runs name the job; of an array's part, with that part
    num_nodes: int
    gpus: int = 0  # of each node
    attempt: int = 0  # how often the job was requeued
    cluster: str | None = None  # its name, which distinguishes this job 12 from another cluster's
    # of `command`, and of what else is asked of the scheduler
    env: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False, compare=False)

    @classmethod
    @abstractmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """The job of the process with this environment, which is that of a job."""

    @property
    @abstractmethod
    def nodes(self) -> Sequence[str]:
        """The names of its nodes; the leader is on the first, if the job is the run's own."""

    @property
    def folder(self) -> Path:
        """The folder from which the job was submitted."""
        return Path()

    @property
    def output(self) -> str:
        """The file for what the batch script prints; "" if that is unknown."""
        return ""

    def problems(self) -> Iterable[str]:
        """A line for each reason why the job cannot be that of a run."""
        return ()

    def notes(self, launch: LaunchConfig) -> Iterable[str]:
        """A line for each part of the job that a run with these settings would not use."""
        return ()

    @abstractmethod
    def command(self, hosts: Sequence[str], argv: Sequence[str], step: str) -> list[str]:
        """A command that runs `argv` on each of these nodes, and ends after all of these processes.

        They have its stdin, stdout and stderr. Where the scheduler names what is started, the name
        is `step`. If one of the processes is lost, the others go on.
        """

    @abstractmethod
    def killed_early(
        self, command: "subprocess.Popen[bytes]", log: Path, count: int
    ) -> Iterable[int]:
        """The numbers of those processes of a `command` that will never connect to their leader.

        They were killed. `log` is the output of the command, which has started `count` processes.

        Raises:
            MusterError: one will not connect for another reason, which the message tells.
        """

    @abstractmethod
    def silent_nodes(self, hosts: Sequence[str]) -> list[str]:
        """Those of these nodes that do not answer."""

    @abstractmethod
    def end_unix_s(self) -> float | None:
        """When the time of the job is over; None if that is unknown."""

    @abstractmethod
    def is_running(self) -> bool:
        """Whether the job may be requeued: it is not cancelled, as far as is known."""

    @abstractmethod
    def requeue(self, excluded: str | None) -> None:
        """Requeue the job, which ends this process.

        `excluded`: the nodes that the job must not get; None: those that it was submitted with.

        Raises:
            MusterError: the scheduler refuses, or does not answer.
        """

    @classmethod
    def worker_variables(cls, assignment: Assignment, env: Mapping[str, str]) -> dict[str, str]:
        """What the scheduler would set for the workers of one node if it had started each of them.

        `env` is that of their agent. Of `rank_variables` only the names are given, and if this
        returns nothing, they are not set.
        """
        return {}


def job_class(env: Mapping[str, str]) -> type[SchedulerJob] | None:
    """The class of the job that a process with this environment is in; None if it is in none."""
    known = (place for variable, place in JOBS.items() if place and env.get(variable))
    place = env.get(SCHEDULER) or next(known, None)
    return class_at(place) if place else None


def class_at(place: str) -> type[SchedulerJob]:
    """The class at a place such as `launch.slurm.current_job:CurrentJob`."""
    module, _, name = place.partition(":")
    found: type[SchedulerJob] = getattr(import_module(module), name)
    return found
