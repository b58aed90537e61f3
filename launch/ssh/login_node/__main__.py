"""A command with `--login me@cluster`: from a laptop that has ssh, on a cluster that has the rest.

`muster run --login me@cluster --launcher slurm --nodes 4 -- train.py`, and likewise for all other
commands of `muster`. What starts runs takes the project along; it is followed from here, and goes
on there whatever becomes of the connection.
"""

from muster import errors

errors.begin()

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

from launch.ssh import openssh
from launch.ssh.login_node import project
from launch.ssh.login_node.connection import Connection, ConnectionLost
from launch.ssh.login_node.installation import Installation, install
from launch.ssh.login_node.remote_command import RemoteCommand, say
from muster import run_files
from muster.command import COMMANDS, FLAG, hide, logins, variable
from muster.writing import read_json, write_json

STARTING = ("run", "sweep", "study")
# With one of these a program has a Python of its own, and Muster's needs no torch.
OWN_PYTHON = ("--python", "--prologue", "--wrap")
REMEMBERED = ("login", "login_config", "login_dir", "login_python")


def main() -> int:
    word, *rest = sys.argv[1:]
    options, words = login_parser().parse_known_args(_own(rest))
    program = rest[len(_own(rest)) :]
    known = _known_run(words)
    if options.login is None and known is not None:
        options = argparse.Namespace(**{name: known[name] for name in REMEMBERED})
    connection = Connection(options.login, options.login_config and Path(options.login_config))
    whole = word in ("study", "report") or (
        word in STARTING and not _has_own_python(words, program)
    )
    installation = install(
        connection, options.login_dir, options.login_python, whole=whole, say=say
    )
    if word in STARTING:
        return _start(word, words, program, connection, installation, vars(options))
    if word == "jobs" and words[:1] == ["fetch"]:
        return _fetch(words[1:], connection, installation)
    if known is not None and word == "jobs" and "logs" in words and {"-f", "--follow"} & {*words}:
        return _follow(
            RemoteCommand(connection, installation, known["session"], known["seen"]), known
        )
    argv = ["bash", "-lc", 'exec "$@"', "bash", *_argv(word, words, installation), *program]
    code = subprocess.call(connection.command(argv, terminal=sys.stdout.isatty()))
    if code == openssh.FAILED:
        raise ConnectionLost(f"{connection.login}: the connection was lost")
    return code


def login_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="muster", add_help=False, allow_abbrev=False)
    parser.add_argument("--login")
    parser.add_argument("--login-config")
    parser.add_argument("--login-dir")
    parser.add_argument("--login-python")
    return parser


def fetch_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="muster jobs fetch")
    parser.add_argument("run")
    parser.add_argument("--to", type=Path, default=Path("logs"), help="folder (default: logs)")
    return parser


def _own(words: Sequence[str]) -> list[str]:
    """Muster's own words, before `--` and the program."""
    return list(words[: words.index("--")] if "--" in words else words)


def _has_own_python(words: Sequence[str], program: Sequence[str]) -> bool:
    given = {word.partition("=")[0] for word in words}
    return bool(program) and bool(given & {*OWN_PYTHON})


def _known_run(words: Sequence[str]) -> dict[str, Any] | None:
    """What is known here of the run that one of `words` names."""
    for word in words:
        if word not in (".", "..") and "/" not in word and (logins() / word).is_file():
            return read_json(logins() / word, *REMEMBERED, "session", "seen")
    return None


def _argv(word: str, words: Sequence[str], installation: Installation) -> list[str]:
    script, *first = COMMANDS[word]
    return [*installation.script(script), *first, *words]


def _start(
    word: str,
    words: list[str],
    program: list[str],
    connection: Connection,
    installation: Installation,
    options: Mapping[str, Any],
) -> int:
    """Start something that goes on there, and follow it."""
    here = Path.cwd()
    root = run_files.project_of(here)
    folder = project.send(connection, installation, root)
    name = f"{word}-{token_hex(4)}"
    if word == "run":
        name, words = _named(words, program)
        if "--detach" not in words and _is_for_slurm(words, installation):
            words.append("--wait")
    words, values = hide(_passed_on(words))
    env = variable(values)
    if options["login_python"] is not None:
        env["MUSTER_PYTHON"] = str(options["login_python"])
    session = f"{installation.folder}/sessions/{name}-{token_hex(4)}"
    command = RemoteCommand(connection, installation, session)
    cwd = f"{folder}/{here.relative_to(root)}"
    command.start([*_argv(word, words, installation), *program], env, cwd)
    known = {**options, "name": name, "session": session}
    return _follow(command, known)


def _named(words: list[str], program: Sequence[str]) -> tuple[str, list[str]]:
    """The run's name, given here so that it is known here, too."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--run-id")
    given, _ = parser.parse_known_args(words)
    if given.run_id is not None:
        return given.run_id, words
    what = Path(program[1]).stem if len(program) > 1 else "train"
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{what}-{token_hex(2)}"
    return name, [*words, "--run-id", name]


def _is_for_slurm(words: Sequence[str], installation: Installation) -> bool:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--launcher", default="auto")
    parser.add_argument("--hosts")
    given, _ = parser.parse_known_args(words)
    is_auto = given.launcher == "auto" and given.hosts is None
    return given.launcher == "slurm" or (is_auto and installation.has_slurm)


def _passed_on(words: Sequence[str]) -> list[str]:
    """`--env NAME` with the value that it has here."""
    found = list(words)
    for at in range(1, len(found)):
        name = found[at]
        if found[at - 1] == FLAG and "=" not in name and name in os.environ:
            found[at] = f"{name}={os.environ[name]}"
    return found


def _follow(command: RemoteCommand, known: Mapping[str, Any]) -> int:
    """Follow it to its end; what has been seen is written down, and not shown again."""
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


def _fetch(words: Sequence[str], connection: Connection, installation: Installation) -> int:
    """Bring a run's folder home: records, logs and the last checkpoint."""
    given = fetch_parser().parse_args(list(words))
    status = json.loads(
        connection.run([*installation.script("launch/jobs.py"), "status", given.run, "--json"])
    )
    source, target = status["run_dir"], given.to / Path(status["run_dir"]).name
    newest = connection.run(["sh", "-c", NEWEST, "sh", source]).strip()
    target.mkdir(parents=True, exist_ok=True)
    chosen = [f"--include=/checkpoints/{newest}", "--exclude=/checkpoints/*"] if newest else []
    connection.rsync(
        [*chosen, f"--exclude=/{run_files.SNAPSHOT.path(Path()).name}"], f":{source}/", f"{target}/"
    )
    print(f"{target}: records and logs{f', checkpoint {newest}' if newest else ''}")
    return 0


# Checkpoints are folders that sort by step; half-written ones have another ending.
NEWEST = (
    'cd "$1/checkpoints" 2>/dev/null || exit 0; '
    'ls -d step_* 2>/dev/null | grep -v "[.]" | tail -n 1'
)

if __name__ == "__main__":
    errors.run(main)
