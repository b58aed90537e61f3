"""The contract between a run and its program: one that comes with Muster, or the user's own."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from configs.settings.launch import RunConfig
from launch.spec import LaunchSpec


@dataclass(frozen=True)
class Sources:
    """The user's files that are copied for a run before it starts."""

    project: Path | None = None  # None: the run uses the files in their own place
    patterns: Sequence[str] = ()  # names of ignored files of the project that are copied, too
    function: Path | None = None  # the folder with the function that every worker calls


class RunProgram(Protocol):
    """The program of a run, in words and as commands. It starts nothing and writes nothing."""

    @property
    def title(self) -> str:
        """What runs, as it is printed."""

    @property
    def name(self) -> str:
        """The program's part of the run's name."""

    @property
    def run(self) -> RunConfig:
        """The settings of the run; those of Muster's own program have more fields."""

    @property
    def sources(self) -> Sources:
        """What is copied for a run."""

    def check(self, python: str, world_size: int | None, *, runs_here: bool = False) -> None:
        """Refuse a program that cannot start with so many workers, as far as this machine knows.

        `python`: the nodes' own. `runs_here`: this machine is one of the nodes.

        Raises:
            UsageError: every problem at once.
        """

    def check_plugins(
        self, python: str, added: Collection[str] | None = None, node: str = ""
    ) -> None:
        """Refuse settings that name a plug-in which the workers' Python does not have.

        `added`: the plug-ins that packages of that Python add; None: it was not asked yet.

        Raises:
            UsageError: a line for each plug-in.
        """

    def announce(self, *, is_sent: bool, is_copied: bool = False) -> None:
        """Print what the user should know when the program starts.

        `is_sent`: as in `spec`. `is_copied`: a snapshot of the project runs.
        """

    def spec(self, run_id: str, *, is_sent: bool, snapshot: Path | None) -> LaunchSpec:
        """The run with this id.

        `is_sent`: the nodes have disks of their own. `snapshot`: the copy of the project, as the
        nodes see it; None: there is none.
        """
        ...

    def settings(self, *launch: object) -> str:
        """The text of the file that repeats the run; `launch`: the settings of its launch."""
        ...
