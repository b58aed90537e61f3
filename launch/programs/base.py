"""The contract between a run and its program, which comes with Muster or is the user's own."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from configs.settings.launch import RunConfig
from launch.spec import LaunchSpec


@dataclass(frozen=True)
class Sources:
    """The user's files that are copied for a run before it starts."""

    project: Path | None = None  # None: the run uses the original files
    patterns: Sequence[str] = ()  # for ignored project files that are copied as well
    function: Path | None = None  # the folder with the function that every worker calls


class RunProgram(Protocol):
    """The program of a run, in words and as commands. It starts no workers and writes no files."""

    @property
    def title(self) -> str:
        """The program as it is printed for the user."""

    @property
    def name(self) -> str:
        """The program's part of the run's name."""

    @property
    def run(self) -> RunConfig:
        """The settings of the run; for Muster's own programs, they have more fields."""

    @property
    def sources(self) -> Sources:
        """The files that are copied for a run."""

    def check(self, python: str, world_size: int | None, *, runs_here: bool = False) -> None:
        """Refuse a program that cannot start with this many workers, as far as known here.

        `python`: the nodes' own Python. `runs_here`: this machine is one of the nodes.

        Raises:
            UsageError: with all problems.
        """

    def check_plugins(
        self, python: str, added: Collection[str] | None = None, node: str = ""
    ) -> None:
        """Refuse settings that name a plug-in which the workers' Python does not have.

        `added`: the plug-ins that packages in that Python add; None if it was not asked yet.

        Raises:
            UsageError: a line for each plug-in.
        """

    def announce(self, *, is_sent: bool, is_copied: bool = False) -> None:
        """Print what the user should know when the program starts.

        `is_sent`: as in `spec`. `is_copied`: the program runs from a snapshot of the project.
        """

    def spec(self, run_id: str, *, is_sent: bool, snapshot: Path | None) -> LaunchSpec:
        """The launch spec of the run with this id.

        `is_sent`: the nodes have disks of their own. `snapshot`: the copy of the project, as the
        nodes see it; None: there is none.
        """
        ...

    def settings(self, *launch: object) -> str:
        """The text of a file of settings that repeats the run; `launch`: its launch settings."""
        ...
