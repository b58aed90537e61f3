"""Run commands with `--login me@cluster` on the cluster; the laptop needs only ssh and rsync.

    muster run --login me@cluster --launcher slurm --nodes 4 -- train.py

The same flag works for all other commands of `muster`. A command that starts runs also sends the
project. The laptop follows the command, which continues on the cluster even if the connection is
lost.
"""

import json
import os
import shlex
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
from configs.clusters import CLUSTERS_VARIABLE
from configs.help_page import Parser
from configs.raw import SWITCH, RawSetting, with_home
from configs.settings.fields import flag
from configs.settings.launch import name_problems
from configs.settings.remote import LoginConfig
from launch.programs.other_launchers import refuse_several
from launch.programs.python_command import without_python
from launch.programs.user_program import name_of
from launch.runs import run_record
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
    logins,
    own_arguments,
    records_of_runs,
    restore_env_values,
    split_env_values,
    variable,
)
from muster.errors import UsageError, refuse
from muster.writing import read_json, write_json

START_COMMANDS = ("run", "sweep", "study")
# On the laptop, a program's `muster.Job` calls this command. On the login node, the module answers.
JOB_COMMAND = "job"
JOB_MODULE = "muster.login_job"
WITHOUT_ON = ("jobs", "report", JOB_COMMAND)  # commands that use no cluster settings
FOLLOW_FLAGS = {"-f", "--follow"}  # of `jobs logs`
# Settings that give a program its own Python, so that Muster's Python needs no torch.
OWN_PYTHON = {"python", "prologue", "container", "wrap"}


@dataclass(frozen=True)
class SweepSettings:
    """Settings of sweeps and studies that are also read on the laptop."""

    name: str | None = None
    cells: Path | None = None


@dataclass(frozen=True)
class Command:
    """A command line after `muster`; the login node parses its words again."""

    word: str  # the first word, such as run
    words: Sequence[str]  # the command's own words, without the login and the program
    program: Sequence[str]  # `--` and all that follows it
    name: str  # of the run, the sweep or the study
    settings: Mapping[str, str]  # in `words`, if the command starts runs
    on: str | None
    cluster: Sequence[RawSetting]  # the settings of the cluster that --on names
    login: Mapping[str, str]  # the settings in LOGIN, from flags or else from the cluster
    has_own_python: bool  # of the program; if so, Muster on the login node needs no torch for it
    problems: Sequence[str]

    @property
    def starts_runs(self) -> bool:
        return self.word in START_COMMANDS

    @property
    def is_detached(self) -> bool:
        return self._switch("detach", default=False)

    @property
    def needs_all(self) -> bool:
        """Whether Muster on the login node needs all that training and reports need."""
        return self.word in ("study", "report") or (self.starts_runs and not self.has_own_python)

    @property
    def follows_logs(self) -> bool:
        return (
            self.word == "jobs" and "logs" in self.words and not FOLLOW_FLAGS.isdisjoint(self.words)
        )

    @property
    def calls(self) -> Path | None:
        """The local folder of calls that `muster.launch` or `muster.map` has pickled, if any."""
        if "cells" in self.settings:
            return Path(self.settings["cells"]).parent
        return Path(self.program[2]) if self.program[1:2] == ["--function"] else None

    def words_there(self, calls: str = "") -> list[str]:
        """The words for the login node, where `calls` is the folder of the pickled calls."""
        added: list[str] = []
        program = self.program
        if self.on is not None and self.word not in WITHOUT_ON:
            added += ["--on", self.on]
        if self.word == "run" and not self.is_detached and self._switch("wait", default=True):
            added.append("--wait")
        if "cells" in self.settings:
            added.append(f"--cells={calls}/{Path(self.settings['cells']).name}")
        elif self.calls is not None:
            program = ["--", "--function", calls]
        return [*self.words, *added, *program]

    def _switch(self, name: str, *, default: bool) -> bool:
        return SWITCH.get(self.settings.get(name, "").lower(), default)


def read(word: str, arguments: Sequence[str]) -> Command:
    """Parse a command line after `muster`: its first word, and all that follows it.

    Files that are named in its settings are the login node's files, and are read there.

    Raises:
        UsageError: there is no such cluster, or its file is wrong.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    program = arguments[end:]
    options, words = login_parser().parse_known_args(arguments[:end])
    cluster = cli.cluster(options.on)
    login = {given.name: given.text for given in cluster if given.name in LOGIN}
    login |= {name: text for name in LOGIN if (text := getattr(options, name)) is not None}
    if "login_config" in login:
        login["login_config"] = str(Path(with_home(login["login_config"])).absolute())
    script: Sequence[str] = ()
    python = None
    problems: list[str] = []
    if program[1:]:
        script, python, problems = without_python(program[1:], None)
    settings: dict[str, str] = {}
    name = ""
    if word in START_COMMANDS:
        typed, _ = cli.words_of((*cli.FILE_CLASSES, SweepSettings), words)
        settings = {given.name: given.text for given in typed}
        setting = "run_id" if word == "run" else "name"
        if setting in settings:
            name = settings[setting]
            problems += name_problems(f"{flag(setting)} ", name)
        elif word == "run":  # chosen here, so that laptop and login node use the same name
            name = _new_name(script)
            words += ["--run-id", name]
        else:
            name = f"{word}-{token_hex(4)}"
    names = {given.name for given in cluster} | settings.keys()
    names_python = python is not None or "python" in names
    is_own_program = bool(program) or "cells" in names
    return Command(
        word=word,
        words=words,
        program=program,
        name=name,
        settings=settings,
        on=options.on,
        cluster=cluster,
        login=login,
        has_own_python=names_python or (is_own_program and not OWN_PYTHON.isdisjoint(names)),
        problems=problems,
    )


def _new_name(script: Sequence[str]) -> str:
    program = name_of(script) if script else "train"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{program}-{token_hex(2)}"


def login_parser() -> ArgumentParser:
    parser = Parser(prog="muster", add_help=False, allow_abbrev=False)
    for name in (*LOGIN, "on"):
        parser.add_argument(flag(name))
    return parser


def main() -> int:
    word, *arguments = own_arguments()
    command = read(word, arguments)
    login = command.login
    record = None if login or command.on else _recorded_run(command.words)
    if record is not None:
        login = {name: record[name] for name in LOGIN if record[name]}
    fetch = None
    if word == "jobs" and command.words[:1] == ["fetch"]:
        fetch = fetching.fetch_parser().parse_args(command.words[1:])
        refuse(name_problems("jobs fetch ", fetch.run))
        if "login" not in login:
            raise UsageError(
                f"{fetch.run} was not started from here on a login node"
                "\ntip: give its login node: --login me@cluster"
            )
    if "login" not in login:  # a cluster without a login node
        become(*COMMANDS[word], *arguments, typed=word)
    if command.starts_runs:
        refuse_several(os.environ)
    refuse(command.problems)
    node = LoginConfig(**login)
    installation = install(
        Connection(node.login, node.login_config),
        node.login_dir,
        node.login_python,
        whole=command.needs_all,
        say=say,
    )
    if command.starts_runs:
        return _start(command, installation, node)
    if word == JOB_COMMAND:
        remote = RemoteCommand(installation, installation.new_session(word))
        argv = installation.command("muster/run_module.py", JOB_MODULE, *command.words)
        remote.start(argv, {}, "/")
        return remote.follow(lambda _: None)
    if fetch is not None:
        return fetching.fetch(fetch, installation)
    if record is not None and command.follows_logs and not record["detached"]:
        return _follow(RemoteCommand(installation, record["session"], record["seen"]), record)
    return _run(command, installation)


def _recorded_run(words: Sequence[str]) -> dict[str, Any] | None:
    """The laptop's record of the run that one of `words` names; None if there is no record.

    Raises:
        UsageError: the record cannot be read, or a run on this machine has the same name.
    """
    for path in records_of_runs(words):
        record = read_json(path, *LOGIN, "session", "seen", "detached")
        if record is None:
            raise UsageError(
                f"{path}, which records where {path.name} runs, cannot be read"
                "\ntip: give its login node with --login, or remove the file if the run is on this "
                "machine"
            )
        # a home directory that both machines share also contains the login node's run
        there = Path(str(record["session"])).parent.parent
        for run_dir in run_record.run_folders():
            if run_dir.name == path.name and not run_dir.is_relative_to(there):
                flags = [f"{flag(name)}={record[name]}" for name in LOGIN if record[name]]
                raise UsageError(
                    f"two runs are named {path.name}\ntip: for the one on this machine, give its "
                    f"folder {run_dir}; for the one on {record['login']}, add {shlex.join(flags)}"
                )
        return record
    return None


def _environment(command: Command) -> dict[str, str]:
    """Variables that give --on the same meaning on the login node.

    Paths inside the project become relative, so that they name files of the copy.
    """
    if command.on is None or command.word in WITHOUT_ON:
        return {}
    here = Path.cwd()
    settings = [
        given._replace(text=os.path.relpath(given.text, here)) if _is_of_project(given) else given
        for given in command.cluster
        if given.name not in LOGIN
    ]
    return {CLUSTERS_VARIABLE: json.dumps({command.on: settings})}


def _is_of_project(given: RawSetting) -> bool:
    """Whether a setting is the path of a file that Muster sends with the project."""
    root = run_files.project_of(Path.cwd())
    return given.name not in LOGIN and Path(given.text).is_relative_to(root)


def _argv(command: Command, words: Sequence[str], installation: Installation) -> list[str]:
    return [*installation.command(*COMMANDS[command.word], muster_word=command.word), *words]


def _run(command: Command, installation: Installation) -> int:
    """Run a short command through a login shell; return its exit code.

    If the doctor's settings name files of the project, it runs in a copy of the project.
    """
    variables = [f"{name}={value}" for name, value in _environment(command).items()]
    needs_project = bool(variables) and any(map(_is_of_project, command.cluster))
    folder = _send_current_folder(installation) if needs_project else "."
    argv = _argv(command, command.words_there(), installation)
    shell = ["env", *variables, "bash", "-lc", 'CDPATH= cd -- "$0" && exec "$@"', folder, *argv]
    connection = installation.connection
    code = subprocess.call(connection.command(shell, terminal=sys.stdout.isatty()))
    if code == openssh.NOT_CONNECTED:
        raise ConnectionLost(
            f"{connection.login}: the connection was lost\ntip: run the same command again"
        )
    return code


def _start(command: Command, installation: Installation, node: LoginConfig) -> int:
    """Start a command that continues there if the connection is lost, and follow it."""
    folder = _send_current_folder(installation)
    session = installation.new_session(command.name)
    calls = f"{session}.call"
    values = {**os.environ, **json.loads(os.environ.get(VALUES, "{}"))}
    words, passed_on = split_env_values(
        restore_env_values(command.words_there(calls), variable(values))
    )
    env = {**_environment(command), **variable(passed_on)}
    if node.login_python is not None:
        env["MUSTER_PYTHON"] = node.login_python
    if command.calls is not None:
        make = 'umask 077 && mkdir -p -- "$1" && chmod go-w -- "${1%/*}"'
        installation.connection.run(["sh", "-c", make, "sh", calls])
        installation.connection.rsync([], f"{command.calls}/", f":{calls}/")
    remote = RemoteCommand(installation, session)
    remote.start(_argv(command, words, installation), env, folder)
    record = {**asdict(node), "name": command.name, "session": session}
    return _follow(remote, {**record, "detached": command.is_detached})


def _send_current_folder(installation: Installation) -> str:
    """Send the project; return the current folder's path in its copy on the login node."""
    here = Path.cwd()
    root = run_files.project_of(here)
    return f"{send_project(installation, root)}/{here.relative_to(root)}"


def _follow(command: RemoteCommand, record: Mapping[str, Any]) -> int:
    """Follow the command to its end; record how much was printed, so that it is printed once."""
    path = logins() / str(record["name"])
    path.parent.mkdir(parents=True, exist_ok=True)

    def note(seen: list[int]) -> None:
        write_json(path, {**record, "seen": seen})

    note(command.seen)
    try:
        return command.follow(note)
    except KeyboardInterrupt:
        say(f"it is still running there; to follow it: muster jobs logs {record['name']} -f")
        return 130


if __name__ == "__main__":
    errors.run(main)
