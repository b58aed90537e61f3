"""Commands with `--login me@cluster`: the laptop needs only ssh, the cluster runs the command.

`muster run --login me@cluster --launcher slurm --nodes 4 -- train.py`, and the same for all other
commands of `muster`. A command that starts runs also sends the project. The laptop follows the
command, which continues on the cluster even if the connection is lost.
"""

import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from configs import cli
from configs.clusters import SENT
from configs.help_page import Parser
from configs.raw import SWITCH, Given
from configs.settings.fields import flag
from configs.settings.launch import name_problems
from launch.programs.other_launchers import refuse_several
from launch.programs.python_command import without_python
from launch.programs.user_program import name_of
from launch.ssh import openssh
from launch.ssh.login_node import fetching
from launch.ssh.login_node.connection import Connection, ConnectionLost
from launch.ssh.login_node.installation import Installation, install, send_project
from launch.ssh.login_node.remote_command import RemoteCommand, say
from muster import errors, run_files
from muster.command import (
    COMMANDS,
    LOGIN,
    VALUES,
    become,
    hide,
    logins,
    own_arguments,
    reveal,
    variable,
)
from muster.errors import UsageError, refuse
from muster.writing import read_json, write_json

STARTING = ("run", "sweep", "study")
QUESTION, ANSWERS = "job", "muster.login_job"  # from `muster.Job` of a program
WITHOUT_ON = ("jobs", "report", QUESTION)  # a cluster has no settings for these
FOLLOW = {"-f", "--follow"}  # of `jobs logs`
# With one of these a program has its own Python, and Muster's needs no torch.
OWN_PYTHON = {"python", "prologue", "wrap"}


@dataclass(frozen=True)
class OfSweep:
    """Settings of sweeps and studies that matter here, too."""

    name: str | None = None
    cells: Path | None = None


@dataclass(frozen=True)
class LoginNode:
    """A login node: the settings of LOGIN."""

    login: str
    login_config: str | None = None
    login_dir: str | None = None
    login_python: str | None = None


@dataclass(frozen=True)
class Command:
    """What was typed after `muster`; the login node reads its words again."""

    word: str  # the first one, such as run
    typed: Sequence[str]  # all that stands behind it
    words: Sequence[str]  # of these the command's own, without a login's and the program
    program: Sequence[str]  # `--` and what follows it
    name: str  # of the run, or of what else it starts
    settings: Mapping[str, str]  # in `words`, of what starts runs
    on: str | None
    cluster: Sequence[Given]  # the settings of the cluster that --on names
    login: Mapping[str, str]  # settings of LOGIN, from flags or else from the cluster
    has_own_python: bool  # the program: Muster there needs no torch for it
    problems: Sequence[str]

    @property
    def starts_runs(self) -> bool:
        return self.word in STARTING

    @property
    def is_detached(self) -> bool:
        return self._switch("detach", default=False)

    @property
    def needs_all(self) -> bool:
        """Whether Muster there needs all that training and reports need."""
        return self.word in ("study", "report") or (self.starts_runs and not self.has_own_python)

    @property
    def follows_logs(self) -> bool:
        return self.word == "jobs" and "logs" in self.words and not FOLLOW.isdisjoint(self.words)

    @property
    def calls(self) -> Path | None:
        """The folder here of what `muster.launch` or `muster.map` has pickled, if one has."""
        if "cells" in self.settings:
            return Path(self.settings["cells"]).parent
        return Path(self.program[2]) if self.program[1:2] == ["--function"] else None

    def words_there(self, calls: str = "") -> list[str]:
        """Its words on the login node, where `calls` is the folder of what was pickled."""
        words = list(self.words)
        program = list(self.program)
        if self.on is not None and self.word not in WITHOUT_ON:
            words += ["--on", self.on]
        if self.word == "run" and not self.is_detached and self._switch("wait", default=True):
            words.append("--wait")
        if "cells" in self.settings:
            words.append(f"--cells={calls}/{Path(self.settings['cells']).name}")
        elif self.calls is not None:
            program[2] = calls
        return [*words, *program]

    def _switch(self, name: str, *, default: bool) -> bool:
        return SWITCH.get(self.settings.get(name, "").lower(), default)


def read(word: str, typed: Sequence[str]) -> Command:
    """Read what was typed.

    Raises:
        UsageError: there is no such cluster, or its file is wrong.
    """
    at = typed.index("--") if "--" in typed else len(typed)
    program = typed[at:]
    options, words = login_parser().parse_known_args(typed[:at])
    cluster = [] if options.on is None else cli.cluster(options.on)
    login = {given.name: given.text for given in cluster if given.name in LOGIN}
    login |= {name: text for name in LOGIN if (text := getattr(options, name)) is not None}
    if "login_config" in login:
        login["login_config"] = str(Path(login["login_config"]).expanduser().absolute())
    script: Sequence[str] = ()
    python = None
    problems: list[str] = []
    if program[1:]:
        script, python, problems = without_python(program[1:], None)
    settings: dict[str, str] = {}
    name = ""
    if word in STARTING:
        own = cli.typed((*cli.FILE_CLASSES, OfSweep), words)
        settings = {given.name: given.text for given in own}
        setting = "run_id" if word == "run" else "name"
        if setting in settings:
            name = settings[setting]
            problems += name_problems(f"{flag(setting)} ", name)
        elif word == "run":  # chosen here, so that both sides use it
            name = _new_name(script)
            words += ["--run-id", name]
        else:
            name = f"{word}-{token_hex(4)}"
    names = {given.name for given in cluster} | settings.keys()
    is_named = python is not None or "python" in names
    takes_python = bool(program) or "cells" in names
    return Command(
        word=word,
        typed=typed,
        words=words,
        program=program,
        name=name,
        settings=settings,
        on=options.on,
        cluster=cluster,
        login=login,
        has_own_python=is_named or (takes_python and not OWN_PYTHON.isdisjoint(names)),
        problems=problems,
    )


def _new_name(script: Sequence[str]) -> str:
    what = name_of(script) if script else "train"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{what}-{token_hex(2)}"


def login_parser() -> ArgumentParser:
    parser = Parser(prog="muster", add_help=False, allow_abbrev=False)
    for name in (*LOGIN, "on"):
        parser.add_argument(flag(name))
    return parser


def main() -> int:
    word, *typed = own_arguments()
    command = read(word, typed)
    login = command.login
    known = None if login or command.on else _known_run(command.words)
    if known is not None:
        login = {name: known[name] for name in LOGIN if known[name]}
    fetched = None
    if word == "jobs" and command.words[:1] == ["fetch"]:
        fetched = fetching.fetch_parser().parse_args(command.words[1:])
        refuse(name_problems("jobs fetch ", fetched.run))
        if "login" not in login:
            raise UsageError(
                f"{fetched.run} was not started from here on a login node; name the node it is on: "
                "--login me@cluster"
            )
    if "login" not in login:  # a cluster without a login node
        become(*COMMANDS[word], *typed, typed=word)
    if command.starts_runs:
        refuse_several(os.environ)
    refuse(command.problems)
    node = LoginNode(**login)
    installation = install(
        Connection(node.login, node.login_config),
        node.login_dir,
        node.login_python,
        whole=command.needs_all,
        say=say,
    )
    if command.starts_runs:
        return _start(command, installation, node)
    if word == QUESTION:
        question = RemoteCommand(installation, installation.new_session(word))
        argv = installation.command("muster/run_module.py", ANSWERS, *command.words)
        question.start(argv, {}, "/")
        return question.follow(lambda _: None)
    if fetched is not None:
        return fetching.fetch(fetched, installation)
    if known is not None and command.follows_logs and not known["detached"]:
        return _follow(RemoteCommand(installation, known["session"], known["seen"]), known)
    return _run(command, installation)


def _known_run(words: Sequence[str]) -> dict[str, Any] | None:
    """The local record of the run that one of `words` names.

    Raises:
        UsageError: its record cannot be read.
    """
    for word in words:
        path = logins() / word
        if word not in (".", "..") and "/" not in word and path.is_file():
            found = read_json(path, *LOGIN, "session", "seen", "detached")
            if found is None:
                raise UsageError(
                    f"{path} is to say where {word} is, but cannot be read; name its login node "
                    "with --login, or remove the file if the run is one of this machine"
                )
            return found
    return None


def _environment(command: Command) -> dict[str, str]:
    """The environment with which --on has the same meaning there; project files are the copy's."""
    if command.on is None or command.word in WITHOUT_ON:
        return {}
    here = Path.cwd()
    root = run_files.project_of(here)
    settings = [
        (name, os.path.relpath(text, here) if Path(text).is_relative_to(root) else text, where)
        for name, text, where in command.cluster
        if name not in LOGIN
    ]
    return {SENT: json.dumps({command.on: settings})}


def _argv(command: Command, words: Sequence[str], installation: Installation) -> list[str]:
    return [*installation.command(*COMMANDS[command.word], typed=command.word), *words]


def _run(command: Command, installation: Installation) -> int:
    """Run a short command through a login shell; return its exit code."""
    given = [f"{name}={value}" for name, value in _environment(command).items()]
    argv = _argv(command, command.words_there(), installation)
    shell = ["env", *given, "bash", "-lc", 'exec "$@"', "bash", *argv]
    connection = installation.connection
    code = subprocess.call(connection.command(shell, terminal=sys.stdout.isatty()))
    if code == openssh.FAILED:
        raise ConnectionLost(
            f"{connection.login}: the connection was lost; give the same command again"
        )
    return code


def _start(command: Command, installation: Installation, node: LoginNode) -> int:
    """Start a command that continues on the login node, and follow it."""
    here = Path.cwd()
    root = run_files.project_of(here)
    folder = send_project(installation, root)
    session = installation.new_session(command.name)
    calls = f"{session}.call"
    values = {**os.environ, **json.loads(os.environ.get(VALUES, "{}"))}
    words, passed_on = hide(reveal(command.words_there(calls), variable(values)))
    env = {**_environment(command), **variable(passed_on)}
    if node.login_python is not None:
        env["MUSTER_PYTHON"] = node.login_python
    if command.calls is not None:
        make = 'umask 077 && mkdir -p -- "$1" && chmod go-w -- "${1%/*}"'
        installation.connection.run(["sh", "-c", make, "sh", calls])
        installation.connection.rsync([], f"{command.calls}/", f":{calls}/")
    remote = RemoteCommand(installation, session)
    remote.start(_argv(command, words, installation), env, f"{folder}/{here.relative_to(root)}")
    known = {**asdict(node), "name": command.name, "session": session}
    return _follow(remote, {**known, "detached": command.is_detached})


def _follow(command: RemoteCommand, known: Mapping[str, Any]) -> int:
    """Follow the command to its end; output that was shown is recorded, and not shown again."""
    path = logins() / str(known["name"])
    path.parent.mkdir(parents=True, exist_ok=True)

    def note(seen: list[int]) -> None:
        write_json(path, {**known, "seen": seen})

    note(command.seen)
    try:
        return command.follow(note)
    except KeyboardInterrupt:
        say(f"it goes on there; go on here: muster jobs logs {known['name']} -f")
        return 130


if __name__ == "__main__":
    errors.run(main)
