"""`muster run|jobs|sweep|study|...`: the commands of the checkout, from any folder.

The values of `--env` must not stay on command lines, which all users of a machine can read. So a
command with `--env NAME=VALUE` starts itself again with `--env NAME` and the value in its
environment. The commands that it starts find the value there.
"""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from muster.checkout import CHECKOUT
from muster.errors import closest
from muster.run_files import state_folder
from muster.terminal import TIP, color_messages

FLAG = "--env"
VALUES = "MUSTER_ENV"  # the variable that holds them, as a JSON object
# The script and the first arguments for each word.
COMMANDS = {
    "run": ["launch/submit.py"],
    "jobs": ["launch/jobs.py"],
    "doctor": ["launch/doctor.py"],
    "config": ["muster/run_module.py", "launch.programs.shown_settings"],
    "testbed": ["launch/testbed.py"],
    "study": ["launch/study.py"],
    "sweep": ["launch/sweep.py"],
    "report": ["muster/run_module.py", "train.report"],
    "path": ["muster/run_module.py", "muster.checkout"],
}
OPTION = "muster"  # of Python's -X: which of these words the user typed
AT_LOGIN = ("run", "jobs", "doctor", "study", "sweep", "report")  # commands that accept --login
BY_NAME = ("jobs", "report")  # of these, commands that also find a login node by a run's name
RUN_NAME = re.compile(r"(?![.-])[\w.+=-]{1,240}", re.ASCII)  # as configs/settings/launch.py allows
LOGIN = ("login", "login_config", "login_dir", "login_python")  # settings of a login node
USAGE = """usage: muster COMMAND [argument ...]

  muster run [flags] -- train.py --lr 1e-3  start a program here or on a cluster
  muster jobs list|status|logs|cancel|...   show, follow and end runs
  muster doctor [flags]                     check the nodes for problems
  muster config [flags]                     show settings and their sources
  muster testbed up|down|...                turn this machine into a test cluster
  muster sweep --over lr=1e-4,3e-4 -- train.py
                                            run all combinations of values
  muster study FILE                         compare modes, and write a report
  muster report RUN ...                     make tables and figures from runs
  muster path                               print the folder that contains slurm/ and configs/
  muster --version                          version, commit and Python

Each command has a --help. From a laptop, --login me@cluster runs the same
command on the cluster's login node; so does --on CLUSTER if muster.toml gives
its login. Afterwards the run's name is enough: muster jobs logs RUN -f,
muster jobs fetch RUN.
"""


def logins() -> Path:
    """The folder with a file for each run that was started from here through --login."""
    return state_folder(os.environ) / "logins"


def records_of_runs(words: Sequence[str]) -> list[Path]:
    """The files in `logins()` of those `words` that name a run; other words are not looked up."""
    names = filter(RUN_NAME.fullmatch, words)
    paths = (logins() / name for name in names)
    return [path for path in paths if os.path.isfile(path)]  # noqa: PTH113 (never raises)


def is_elsewhere(command: str, words: Sequence[str]) -> bool:
    """Whether a command may be for a login node: it names the node, a cluster, or a run there.

    A new run is never sent there just because an earlier one has the same name.
    """
    own = words[: _own_count(words)]
    if any(word.partition("=")[0] in ("--login", "--on") for word in own):
        return True
    return command in BY_NAME and bool(records_of_runs(own))


def main() -> None:
    """Run the command that the first word names, in place of this process."""
    word, *rest = sys.argv[1:] or ["--help"]
    if word in ("--version", "-V"):
        print(version_text(CHECKOUT))
        sys.exit(0)
    if word == "help" and rest:  # muster help jobs cancel
        word = rest[0]
        rest = [*rest[1:], "--help"]
    if word in ("--help", "-h", "help"):
        sys.stdout.write(USAGE)
        sys.exit(0)
    if word not in COMMANDS:
        similar = closest(word, [*COMMANDS, "--version"])
        hint = f"did you mean muster {similar}?" if similar else "muster --help lists all commands"
        if word.endswith(".py"):
            hint = f"to run it: muster run -- {word}"
        color_messages()
        sys.stderr.write(f"error: unknown command {word!r}{TIP}{hint}\n")
        sys.exit(2)
    if (word in AT_LOGIN and is_elsewhere(word, rest)) or [word, *rest[:1]] == ["jobs", "fetch"]:
        become("muster/run_module.py", "launch.ssh.login_node", word, *rest)
    become(*COMMANDS[word], *rest, typed=word)


def version_text(checkout: Path) -> str:
    """What `muster --version` prints: its version, the checkout with its commit, and the Python.

    muster 0.3.0 (/home/me/muster, commit 1a2b3c4d), Python 3.12.1 (/usr/bin/python3)
    """
    import platform  # imported here: no other command needs these

    import muster
    from muster import git

    words = ("describe", "--always", "--dirty", "--exclude=*", "--abbrev=8")
    commit = git.ask_top(checkout, *words)
    place = f"{checkout}, commit {commit}" if commit else str(checkout)
    python = f"Python {platform.python_version()} ({sys.executable})"
    return f"muster {muster.__version__} ({place}), {python}"


def become(script: str, *words: str, typed: str = "") -> NoReturn:
    """Run a script of the checkout in place of this process; `typed`: the word after `muster`."""
    argv = [sys.executable, *typed_word_options(typed), str(CHECKOUT / script), *words]
    os.execv(sys.executable, argv)


def typed_word_options(word: str) -> list[str]:
    """Python options that pass the word to a script, but not to processes that it starts."""
    return ["-X", f"{OPTION}={word}"] if word else []


def this_command(otherwise: str = "") -> str:
    """The current command as the user typed it: `muster jobs`, or `python launch/jobs.py`."""
    for word in COMMANDS:
        if sys.orig_argv[1:3] == typed_word_options(word):
            return f"muster {word}"
    return otherwise or f"python {sys.argv[0]}"


def command_hint(word: str, *words: str) -> str:
    """A command of ours as this user can type it in any folder: `muster report RUN`."""
    own = Path(sys.executable).with_name("muster")
    on_path = shutil.which("muster")
    if not own.exists():  # Muster is not installed in this Python; the checkout's script works, too
        start = [sys.executable, str(CHECKOUT / COMMANDS[word][0]), *COMMANDS[word][1:]]
    elif on_path is not None and own.samefile(on_path):
        start = ["muster", word]
    else:
        start = [str(own), word]
    return shlex.join([*start, *words])


def split_env_values(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separate the values of --env from a command line; `--` ends our part of it."""
    own_count = _own_count(words)
    visible = list(words)
    values: dict[str, str] = {}
    for index, text in _positions(words[:own_count]):
        name, equals, value = text.partition("=")
        if not equals:
            values.pop(name, None)  # a later --env NAME, which is passed on, overrides it
        elif name:
            values[name] = value
            visible[index] = visible[index].removesuffix(f"={value}")
    return visible, values


def restore_env_values(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Restore the command line that `split_env_values` was given, with the values in `env`."""
    values = json.loads(env.get(VALUES, "{}"))
    restored = list(words)
    for index, text in _positions(words[: _own_count(words)]):
        if text in values:
            restored[index] += f"={values[text]}"
    return restored


def variable(values: Mapping[str, str]) -> dict[str, str]:
    """The environment variable from which `restore_env_values` reads the values."""
    return {VALUES: json.dumps(values)} if values else {}


def own_arguments() -> list[str]:
    """This command's arguments without values of --env; if it has any, it starts itself again."""
    words = sys.argv[1:]
    visible, values = split_env_values(words)
    if values:
        env = {**os.environ, **variable(values)}
        start = sys.orig_argv[: -len(words)]  # Python, its options, and the script or module
        os.execve(sys.executable, [sys.executable, *start[1:], *visible], env)
    return visible


def _own_count(words: Sequence[str]) -> int:
    """The number of words before `--`."""
    return words.index("--") if "--" in words else len(words)


def _positions(words: Sequence[str]) -> list[tuple[int, str]]:
    """The position of the value of each --env in `words`, with its text."""
    positions = []
    for index, word in enumerate(words):
        if word.startswith(f"{FLAG}="):
            positions.append((index, word.removeprefix(f"{FLAG}=")))
        elif index and words[index - 1] == FLAG:
            positions.append((index, word))
    return positions


if __name__ == "__main__":
    main()
