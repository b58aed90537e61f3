"""Muster on a login node: each version of this checkout is sent there once and prepared.

A version is named after the content of its files. Its environment contains what launchers need,
without torch. If the program is Muster's own trainer, or has no Python of its own, the environment
contains everything that Muster needs.

The user's project on the laptop is also copied, into a separate folder below Muster's folder. A
later copy sends only what has changed. rsync sends the files that git tracks or would track. If a
file that was sent is removed on the laptop, it is also removed on the login node. Files that
programs have created there, such as `logs/`, are kept.
"""

import os
import shlex
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

from launch.nodes import node_facts
from launch.nodes.survey import ONLY_BY_HAND, START_UP
from launch.programs import project_snapshot
from launch.ssh import transfer
from launch.ssh.login_node.connection import Connection, ConnectionLost
from muster import extras
from muster.checkout import CHECKOUT
from muster.command import typed_word_options
from muster.errors import MusterError

OTHER_FILES = "slurm setup.cfg pyproject.toml constraints.txt Makefile".split()
# Our lines begin with this mark, so that the login shell's own output can be skipped.
ANSWER_MARK = "muster:"
# Runs a command after checking that its input, the line "whole", arrives.
WHOLE = f"""read -r line && test "$line" = whole && exec "$@"
echo {shlex.quote(f"{START_UP} reads the input that is meant for Muster; {ONLY_BY_HAND}")} >&2
exit 2"""
ASK = """echo; base=${1:-$HOME/.muster}; base=${base/#\\~/$HOME}; version=$base/versions/$2
echo "muster:$base"
test -e "$version/.sent" && echo muster:sent
test -e "$version/.venv/.lock" -o -e "$version/.venv/$3" && echo muster:ready
exit 0"""

# Creates a folder below Muster's own folder; no other user may write into it.
MAKE = 'umask go-w && mkdir -p -- "$1" && chmod go-w -- "$1" "${1%/*}"'
SENT_LIST = ".muster-sent-files"  # a file in the copy: the names of the files that were sent last
# Removes the files that were sent last time but are not in the new list. The new list is stdin, and
# then replaces the old list. A NUL ends each name.
REMOVE = """umask go-w; CDPATH= cd -- "$1" && touch -- "$2" && cat > "$2.$$" &&
comm -z -23 "$2" "$2.$$" | xargs -0 -r rm -f -- && mv -f -- "$2.$$" "$2"
"""


@dataclass(frozen=True)
class Installation:
    """Muster's paths on a login node."""

    connection: Connection
    folder: str  # for all of Muster's files
    checkout: str
    python: str

    def command(self, script: str, *words: str, muster_word: str = "") -> list[str]:
        """The command line that runs a script of the checkout.

        The script's messages call it `muster_word`, the word after `muster`; see `muster.command`.
        """
        return [self.python, *typed_word_options(muster_word), f"{self.checkout}/{script}", *words]

    def new_session(self, name: str) -> str:
        """The path for a new session's folder."""
        return f"{self.folder}/sessions/{name}-{token_hex(4)}"


def install(
    connection: Connection,
    folder: str | None,
    python: str | None,
    *,
    whole: bool,
    say: Callable[[str], None],
) -> Installation:
    """Prepare this version of Muster on the login node.

    Args:
        connection: the connection to the login node.
        folder: the folder for Muster's files on the login node; None: ~/.muster.
        python: a Python on the login node that has the required packages; None: an environment is
            created.
        whole: include torch and everything else that training needs.
        say: prints a line for the user.

    Raises:
        MusterError: this version cannot be prepared; the message says why, and what to do.
    """
    names = _files()
    version = _version(names)
    lock = ".lock" if whole else ".lock-launch"
    ask = ["sh", "-c", WHOLE, "sh", "bash", "-lc", ASK, "bash", folder or "", version, lock]
    output = connection.run(ask, b"whole\n").splitlines()
    base, *facts = [
        line.removeprefix(ANSWER_MARK) for line in output if line.startswith(ANSWER_MARK)
    ] or [""]
    if not base.startswith("/"):
        raise MusterError(
            f"{connection.login}: its login shell does not answer\ntip: try there: bash -lc true"
        )
    checkout = f"{base}/versions/{version}"
    if "sent" not in facts:
        say(f"sending Muster to {connection.login}:{checkout}, once for this version")
        # another laptop may send the same files at the same time
        _send_files(connection, map(os.fsencode, names), CHECKOUT, checkout)
        connection.run(["sh", "-c", 'umask go-w && : > "$1"', "sh", f"{checkout}/.sent"])
    if python is None and "ready" not in facts:
        size = "with all packages for training, which takes minutes" if whole else "launcher only"
        say(f"installing Muster on {connection.login}, once for this version ({size})")
        _make_environment(connection, checkout, [] if whole else [*extras.packages(extras.BASE)])
    prepared = f"{checkout}/.venv/bin/python"
    return Installation(connection, base, checkout, python or prepared)


def _make_environment(connection: Connection, checkout: str, packages: Sequence[str]) -> None:
    words = ["bash", "-s", "--", checkout, os.environ.get("TORCH_INDEX", ""), *packages]
    try:
        connection.run(words, transfer.SCRIPT.read_bytes())
    except ConnectionLost:
        raise
    except MusterError as error:
        raise MusterError(
            f"{error}\ntip: if packages cannot be installed from there, choose a Python that has "
            f"{', '.join(packages or ['what Muster needs'])} with --login-python"
        ) from None


def _files() -> list[str]:
    """The sorted relative paths of the checkout's files that are needed to run."""
    return sorted(
        str(path.relative_to(CHECKOUT))
        for name in (*node_facts.PACKAGES, *OTHER_FILES)
        for path in [CHECKOUT / name, *(CHECKOUT / name).rglob("*")]
        if path.is_file() and "__pycache__" not in path.parts
    )


def _version(names: Sequence[str]) -> str:
    digest = sha256()
    for name in names:
        digest.update(f"\0{name}\0".encode() + (CHECKOUT / name).read_bytes())
    return digest.hexdigest()[:12]


def send_project(installation: Installation, project: Path) -> str:
    """Update the copy of a project; return the copy's folder on the login node.

    Raises:
        UsageError: too much is untracked by git; the message says what to do.
        MusterError: the project cannot be copied.
    """
    connection = installation.connection
    name = sha256(f"{socket.gethostname()}\0{project}".encode()).hexdigest()[:8]
    folder = f"{installation.folder}/projects/{project.name}-{name}"
    paths = project_snapshot.files_of(project)
    names = sorted(os.fsencode(path.relative_to(project)) for path in paths)
    name_list = _send_files(connection, names, project, folder)
    connection.run(["env", "LC_ALL=C", "sh", "-c", REMOVE, "sh", folder, SENT_LIST], name_list)
    return folder


def _send_files(connection: Connection, names: Iterable[bytes], source: Path, folder: str) -> bytes:
    """Send these files of `source` into `folder` on the login node; return the list of their names.

    A NUL ends each name in the list.
    """
    name_list = b"".join(name + b"\0" for name in names)
    connection.run(["sh", "-c", MAKE, "sh", folder])
    connection.rsync(["--from0", "--files-from=-"], f"{source}/", f":{folder}/", name_list)
    return name_list
