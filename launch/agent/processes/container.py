"""Start a node's processes inside a container: `--container IMAGE`.

How it works: the commands of a run's plan stay unchanged. On its node, each is prefixed with the
command of a container engine before it is started. The engine is the first of `ENGINES` found on
PATH, where a prologue may have put it, so nodes may have different engines. An engine shares the
node's network, processes and user with the program that it starts, and passes the environment on.
So ports, signals, exit codes, stacks and the end of all processes work as without a container.
Every folder has the same path inside.

Before the workers start, the image's Python is checked for everything that they need.
"""

import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from configs import plugins
from configs.settings.launch import OTHER_ENGINES
from launch.agent.processes.workers import OUTPUT_BYTES, spawn
from launch.nodes.survey import last_line
from launch.nodes.this_machine import gpu_count
from launch.spec import Assignment, LaunchSpec, NodeCommand
from launch.starters.base import starter_of
from muster.errors import UsageError
from muster.ownership import user_name
from muster.terminal import TIP
from muster.writing import tail, writing

# Writes which of the modules the image's Python lacks. The current folder is removed from its path.
# An engine may print text as well, so the answer goes to a file.
MISSING_MODULES_SCRIPT = """
import sys
if sys.version_info < (3, 8):
    sys.exit("it is Python %d.%d, but Muster needs 3.8 or newer" % sys.version_info[:2])
sys.path[: not getattr(sys.flags, "safe_path", False)] = []
import importlib.util
with open(sys.argv[1], "w") as answer:
    answer.write(" ".join(name for name in sys.argv[2:] if importlib.util.find_spec(name) is None))
"""


class Engine(Protocol):
    """A pure function that makes the arguments of a container engine.

    `mounts`: folders, as PATH or HERE:THERE. `cwd`: the folder inside in which `argv` starts.
    """

    def __call__(
        self, image: str, mounts: Sequence[str], cwd: str, argv: Sequence[str], *, has_gpus: bool
    ) -> Sequence[str]: ...


def _apptainer(
    image: str, mounts: Sequence[str], cwd: str, argv: Sequence[str], *, has_gpus: bool
) -> Sequence[str]:
    gpus = ("--nv",) if has_gpus else ()
    return ("exec", *gpus, *_options("--bind", mounts), "--pwd", cwd, image, *argv)


def _charliecloud(
    image: str, mounts: Sequence[str], cwd: str, argv: Sequence[str], *, has_gpus: bool
) -> Sequence[str]:
    """There is no option for GPUs: `ch-fromhost` puts the driver's libraries into an image."""
    return (*_options("--bind", mounts), "--cd", cwd, image, "--", *argv)


ENGINES: Mapping[str, Engine] = {
    "apptainer": _apptainer,
    "singularity": _apptainer,  # its older name
    "ch-run": _charliecloud,
}
# The prefixes of variables that override those of an image.
OVERRIDES = {"apptainer": "APPTAINERENV_", "singularity": "SINGULARITYENV_"}


def _options(name: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (name, value)]


@dataclass(frozen=True)
class Container:
    """An image on a node, and the engine that starts commands in it."""

    engine: str  # one of ENGINES
    image: str
    mounts: tuple[str, ...]
    has_gpus: bool
    variables: frozenset[str] = frozenset()  # names of the user's own variables, as from --env

    def command(self, command: NodeCommand, env: Mapping[str, str]) -> NodeCommand:
        """The command that starts `command` inside; `env`: the environment that it inherits."""
        engine = ENGINES[self.engine]
        cwd = str(Path(command.cwd).absolute())
        words = engine(self.image, self.mounts, cwd, command.argv, has_gpus=self.has_gpus)
        if (prefix := OVERRIDES.get(self.engine)) is not None:
            more = {f"{prefix}{name}": env[name] for name in self.variables & env.keys()}
        else:  # ch-run needs a user name, which a service or a cron job may lack
            more = {"USER": env.get("USER", user_name(os.geteuid()))}
        return replace(command, argv=(self.engine, *words), env={**command.env, **more})

    @property
    def absent_folders(self) -> list[str]:
        """The mount points that ch-run needs and that an image that is a folder lacks."""
        root = Path(self.image)
        if self.engine != "ch-run" or not root.is_dir():
            return []
        places = [root / mount.rpartition(":")[2].lstrip("/") for mount in self.mounts]
        return [str(place) for place in places if not place.exists()]


def container_of(assignment: Assignment, env: Mapping[str, str], scratch: str) -> Container:
    """The container of a node's workers, whose environment is `env`.

    Raises:
        UsageError: this node has no engine, or lacks the image or a folder to mount; or an engine
            cannot mount one of the run's own folders.
        CannotWrite: there is no folder for checkpoints, and it cannot be made.
    """
    program = assignment.spec.program
    place = f"on {assignment.name}"
    path = env.get("PATH")
    engine = next((name for name in ENGINES if shutil.which(name, path=path)), None)
    if engine is None:
        other = next((name for name in OTHER_ENGINES if shutil.which(name, path=path)), None)
        advice = f"start {other} with --wrap" if other else "load its module in --prologue"
        raise UsageError(
            f"--container {program.image} {place}: none of {', '.join(ENGINES)} found on PATH{TIP}"
            f"{advice}"
        )
    if not Path(program.image).exists():
        raise UsageError(
            f"--container {program.image} {place}: No such file or directory{TIP}copy the image to "
            "this node"
        )
    if lacking := [mount for mount in program.mounts if not Path(mount.partition(":")[0]).exists()]:
        raise UsageError(
            f"--container-mounts {','.join(lacking)} {place}: No such file or directory"
        )
    checkpoints = Path({**env, **assignment.spec.env}["MUSTER_CHECKPOINTS"])
    moved = [mount for mount in program.mounts if ":" in mount]
    others = [mount for mount in program.mounts if ":" not in mount]
    mounts = outermost([*_read_and_written(assignment, scratch), str(checkpoints), *others])
    if str(checkpoints) in mounts:  # it is not inside the run folder, so it may not exist yet
        with writing(checkpoints):
            checkpoints.mkdir(parents=True, exist_ok=True)
    if odd := [mount for mount in mounts if {":", ","} & {*mount}]:
        raise UsageError(
            f"--container {program.image} {place}: {odd[0]} cannot be mounted, because its name "
            f"contains a colon or a comma{TIP}rename it"
        )
    variables = frozenset(assignment.spec.secrets)
    return Container(engine, program.image, (*mounts, *moved), gpu_count() > 0, variables)


def _read_and_written(assignment: Assignment, scratch: str) -> list[str]:
    """The folders of a run that exist on this node; no engine mounts a folder that is absent."""
    spec = assignment.spec
    own = [assignment.cwd, spec.program.cwd or ".", spec.program.project]
    own += [str(spec.run_dir), assignment.data, str(Path(scratch).parent)]
    return [folder for folder in own if folder and Path(folder).exists()]


def outermost(folders: Iterable[str]) -> list[str]:
    """These folders and the targets of symbolic links, without folders that are inside others."""
    named = [Path(folder).absolute() for folder in folders]
    paths = {*named, *(path.resolve() for path in named)}
    outer: list[Path] = []
    for path in sorted(paths, key=lambda path: (len(path.parts), path)):
        # the root folder is never mounted, even if a program starts in it
        if len(path.parts) > 1 and not any(path.is_relative_to(other) for other in outer):
            outer.append(path)
    return [str(path) for path in outer]


def assignment_inside(
    assignment: Assignment, env: Mapping[str, str], scratch: str, wait: Callable[[], None]
) -> Assignment:
    """Check the image's Python, and return the assignment with commands that start inside.

    `env`: the environment that they inherit. `wait` is called until the image's Python has
    answered.

    Raises:
        UsageError: as `container_of` does; or the image does not start, or lacks something.
        CannotWrite: as `container_of` does.
        MusterError: the engine cannot be started.
    """
    container = container_of(assignment, env, scratch)
    needs = _needs(assignment.spec)
    answer = Path(scratch, "lacks")
    printed = Path(scratch, "printed")
    first = assignment.commands[0]
    python = first.argv[0]
    question = replace(first, argv=(python, "-c", MISSING_MODULES_SCRIPT, str(answer), *needs))
    with printed.open("wb") as log:
        process = spawn(container.command(question, env), env, log)
    while process.poll() is None:
        wait()
    image = f"--container {container.image} on {assignment.name}"
    if process.returncode or not answer.exists():
        text = tail(printed, OUTPUT_BYTES).decode(errors="replace")
        why = last_line(text, f"exit code {process.returncode}")
        advice = ""
        if absent := container.absent_folders:
            advice = f"{TIP}make these folders in the image: mkdir -p {shlex.join(absent)}"
        raise UsageError(f"{image}: {container.engine} did not start {python}: {why}{advice}")
    if lacking := answer.read_text(encoding="utf-8").split():
        raise UsageError(
            f"{image}: its {python} has no {lacking[0]}, which {needs[lacking[0]]} needs{TIP}"
            "install it in the image, or choose another Python of the image with --python"
        )
    commands = tuple(container.command(command, env) for command in assignment.commands)
    return replace(assignment, commands=commands)


def _needs(spec: LaunchSpec) -> dict[str, str]:
    """The modules that the image's Python must have, and what needs each."""
    needs = {}
    is_known = plugins.is_known("launch.starters", spec.workers)  # its package may be absent here
    if is_known and (module := starter_of(spec.workers).needs) is not None:
        needs[module] = f"--workers {spec.workers}"
    if spec.program.argv[0] == "--function":
        needs["cloudpickle"] = "sending a function"
    return needs
