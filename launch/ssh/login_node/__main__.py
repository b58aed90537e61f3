"""Commands with `--login me@cluster`: the laptop needs only ssh, the cluster runs the command.

`muster run --login me@cluster --launcher slurm --nodes 4 -- train.py`, and the same for all other
commands of `muster`. A command that starts runs also sends the project. The laptop follows the
command, which continues on the cluster even if the connection is lost.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

from configs import cli
from configs.clusters import SENT
from configs.help_page import Parser
from configs.raw import Given
from configs.settings.launch import name_problems
from launch.programs.other_launchers import refuse_several
from launch.programs.python_command import plain
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
# With one of these a program has its own Python, and Muster's needs no torch.
OWN_PYTHON = {"python", "prologue", "wrap"}


def main() -> int:
    word, *rest = own_arguments()
    at = rest.index("--") if "--" in rest else len(rest)
    program = rest[at:]
    options, words = login_parser().parse_known_args(rest[:at])
    cluster = [] if options.on is None else cli.cluster(options.on)
    of_login = _login_of(options, cluster)
    known = None if of_login or options.on else _known_run(words)
    if known is not None:
        of_login = {name: known[name] for name in LOGIN if known[name]}
    fetched = None
    if word == "jobs" and words[:1] == ["fetch"]:
        fetched = fetching.fetch_parser().parse_args(words[1:])
        refuse(name_problems("jobs fetch ", fetched.run))
        if "login" not in of_login:
            raise UsageError(
                f"{fetched.run} was not started from here on a login node; name the node it is on: "
                "--login me@cluster"
            )
    if "login" not in of_login:  # a cluster without a login node
        become(*COMMANDS[word], *rest, typed=word)
    if word in STARTING:
        refuse_several(os.environ)
    script: Sequence[str] = ()
    python = None
    if program[1:]:
        script, python, problems = plain(program[1:], None)
        refuse(problems)
    name, words = _named(word, words, script) if word in STARTING else ("", words)
    given = {one.name for one in cluster} | _typed(words)
    named = "python" in given or python is not None
    is_own = named or ((program or "cells" in given) and OWN_PYTHON & given)
    installation = install(
        Connection(of_login["login"], of_login.get("login_config")),
        of_login.get("login_dir"),
        of_login.get("login_python"),
        whole=word in ("study", "report") or (word in STARTING and not is_own),
        say=say,
    )
    env: dict[str, str] = {}
    if options.on is not None and word not in ("jobs", "report", QUESTION):
        words = [*words, "--on", options.on]
        env = _sent(options.on, cluster, Path.cwd())
    if word in STARTING:
        return _start(name, word, words, program, env, installation, of_login)
    if word == QUESTION:
        command = RemoteCommand(installation, installation.new_session(word))
        command.start(installation.command("muster/run_module.py", ANSWERS, *words), {}, "/")
        return command.follow(lambda _: None)
    if fetched is not None:
        return fetching.fetch(fetched, installation)
    is_following = word == "jobs" and "logs" in words and {"-f", "--follow"} & {*words}
    if is_following and known is not None and not known["detached"]:
        return _follow(RemoteCommand(installation, known["session"], known["seen"]), known)
    return _run(
        installation, [*installation.command(*COMMANDS[word], typed=word), *words, *program], env
    )


def _login_of(options: argparse.Namespace, cluster: Sequence[Given]) -> dict[str, str]:
    """The login node's settings from flags, or else from the cluster, by the names of LOGIN."""
    found = {one.name: one.text for one in cluster if one.name in LOGIN}
    found |= {name: text for name in LOGIN if (text := getattr(options, name)) is not None}
    if "login_config" in found:
        found["login_config"] = str(Path(found["login_config"]).expanduser().absolute())
    return found


def _run(installation: Installation, argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a short command through a login shell; return its exit code."""
    given = [f"{name}={value}" for name, value in env.items()]
    shell = ["env", *given, "bash", "-lc", 'exec "$@"', "bash", *argv]
    connection = installation.connection
    code = subprocess.call(connection.command(shell, terminal=sys.stdout.isatty()))
    if code == openssh.FAILED:
        raise ConnectionLost(
            f"{connection.login}: the connection was lost; give the same command again"
        )
    return code


def login_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="muster", add_help=False, allow_abbrev=False)
    for name in (*LOGIN, "on"):
        parser.add_argument(f"--{name.replace('_', '-')}")
    return parser


def _typed(words: Sequence[str]) -> set[str]:
    """The names of the flags among these words."""
    return {word.partition("=")[0][2:] for word in words if word.startswith("--")}


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


def _sent(on: str, cluster: Sequence[Given], here: Path) -> dict[str, str]:
    """The environment with which --on has the same meaning there; project files are the copy's."""
    root = run_files.project_of(here)
    settings = [
        (name, os.path.relpath(text, here) if Path(text).is_relative_to(root) else text, where)
        for name, text, where in cluster
        if name not in LOGIN
    ]
    return {SENT: json.dumps({on: settings})}


def _start(
    name: str,
    word: str,
    words: list[str],
    program: list[str],
    env: dict[str, str],
    installation: Installation,
    of_login: Mapping[str, str],
) -> int:
    """Start a command that continues on the login node, and follow it."""
    here = Path.cwd()
    root = run_files.project_of(here)
    folder = send_project(installation, root)
    if word == "run" and not {"detach", "no-wait"} & _typed(words):
        words.append("--wait")
    values = {**os.environ, **json.loads(os.environ.get(VALUES, "{}"))}
    words, passed_on = hide(reveal(words, variable(values)))
    env |= variable(passed_on)
    if "login_python" in of_login:
        env["MUSTER_PYTHON"] = of_login["login_python"]
    session = installation.new_session(name)
    words, program = _with_calls(words, program, installation, f"{session}.call")
    command = RemoteCommand(installation, session)
    command.start(
        [*installation.command(*COMMANDS[word], typed=word), *words, *program],
        env,
        f"{folder}/{here.relative_to(root)}",
    )
    known = {**dict.fromkeys(LOGIN), **of_login, "name": name, "session": session}
    return _follow(command, {**known, "detached": "detach" in _typed(words)})


def _with_calls(
    words: list[str], program: list[str], installation: Installation, place: str
) -> tuple[list[str], list[str]]:
    """The command, after sending what `muster.launch` or `muster.map` has pickled to `place`."""
    source = Path(program[2]) if program[1:2] == ["--function"] else None
    if source is not None:
        program = [*program[:2], place]
    for at, word in enumerate(words):
        if word.startswith("--cells="):
            file = Path(word.removeprefix("--cells="))
            source, words[at] = file.parent, f"--cells={place}/{file.name}"
    if source is not None:
        make = 'umask 077 && mkdir -p -- "$1" && chmod go-w -- "${1%/*}"'
        installation.connection.run(["sh", "-c", make, "sh", place])
        installation.connection.rsync([], f"{source}/", f":{place}/")
    return words, program


def _named(word: str, words: list[str], program: Sequence[str]) -> tuple[str, list[str]]:
    """The command's local name; a run's name is chosen here, so that both sides use it.

    Raises:
        UsageError: it cannot be that of a run, or of a folder.
    """
    parser = Parser(add_help=False, allow_abbrev=False)
    flag = "--run-id" if word == "run" else "--name"
    parser.add_argument(flag, dest="name")
    given, _ = parser.parse_known_args(words)
    if given.name is not None:
        refuse(name_problems(f"{flag} ", given.name))
        return given.name, words
    if word != "run":
        return f"{word}-{token_hex(4)}", words
    what = name_of(program) if program else "train"
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{what}-{token_hex(2)}"
    return name, [*words, "--run-id", name]


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
