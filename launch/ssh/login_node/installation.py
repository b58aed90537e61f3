"""Muster on a login node: each version of this checkout is sent there once and prepared.

A version is the content of the files. Its environment has what launchers need, and no torch. Where
the program is Muster's own trainer, or has no Python of its own, all that Muster needs is there.

A project on a laptop is copied there as well, into a folder of its own below Muster's; the second
time only what has changed. What git tracks or would track is sent, by rsync; a file that was sent
once and is gone here is removed there. What programs have made there, such as `logs/`, stays.
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
from muster.command import say_typed
from muster.errors import MusterError

OTHER_FILES = "slurm setup.cfg pyproject.toml constraints.txt Makefile".split()
# Our lines begin with a mark, so that output of the login shell itself is skipped.
MARK = "muster:"
# Whether the whole input of a command reaches it.
WHOLE = f"""read -r line && test "$line" = whole && exec "$@"
echo {shlex.quote(f"{START_UP} reads the input that is meant for Muster; {ONLY_BY_HAND}")} >&2
exit 2"""
ASK = """echo; base=${1:-$HOME/.muster}; base=${base/#\\~/$HOME}; version=$base/versions/$2
echo "muster:$base"
test -e "$version/.sent" && echo muster:sent
test -e "$version/.venv/.lock" -o -e "$version/.venv/$3" && echo muster:ready
exit 0"""

# Makes a folder below Muster's own one; nobody else may write into what is made.
MAKE = 'umask go-w && mkdir -p -- "$1" && chmod go-w -- "$1" "${1%/*}"'
SENT = ".muster-sent-files"  # in the copy: the names of the files sent last
# Removes files of the first list that the second one lacks; names end with a NUL.
REMOVE = """umask go-w; cd -- "$1" && touch -- "$2" && cat > "$2.$$" &&
comm -z -23 "$2" "$2.$$" | xargs -0 -r rm -f -- && mv -f -- "$2.$$" "$2"
"""


@dataclass(frozen=True)
class Installation:
    """The paths on a login node."""

    connection: Connection
    folder: str  # of all Muster's files on it
    checkout: str
    python: str

    def command(self, script: str, *words: str, typed: str = "") -> list[str]:
        """The command line of one of the checkout's scripts; `typed`: see `muster.command`."""
        return [self.python, *say_typed(typed), f"{self.checkout}/{script}", *words]

    def new_session(self, name: str) -> str:
        """The folder of a new session."""
        return f"{self.folder}/sessions/{name}-{token_hex(4)}"


def install(
    connection: Connection,
    folder: str | None,
    python: str | None,
    *,
    whole: bool,
    say: Callable[[str], None],
) -> Installation:
    """Make this version of Muster ready there; `whole`: with torch and all that training needs.

    `folder`: for Muster's own files there (default: ~/.muster); `python`: a Python that has the
    needed packages, so that no environment is made.

    Raises:
        MusterError: it cannot be made ready; the message says why, and what to do.
    """
    names = _files()
    version, lock = _version(names), ".lock" if whole else ".lock-launch"
    ask = ["sh", "-c", WHOLE, "sh", "bash", "-lc", ASK, "bash", folder or "", version, lock]
    asked = connection.run(ask, b"whole\n").splitlines()
    base, *facts = [line.removeprefix(MARK) for line in asked if line.startswith(MARK)] or [""]
    if not base.startswith("/"):
        raise MusterError(
            f"{connection.login}: its login shell does not answer; try there: bash -lc true"
        )
    checkout = f"{base}/versions/{version}"
    if "sent" not in facts:
        say(f"sending Muster to {connection.login}:{checkout}, once for this version")
        # another laptop may send the same files
        _send_files(connection, map(os.fsencode, names), CHECKOUT, checkout)
        connection.run(["sh", "-c", 'umask go-w && : > "$1"', "sh", f"{checkout}/.sent"])
    if python is None and "ready" not in facts:
        size = "all that training needs, which takes minutes" if whole else "what launchers need"
        say(f"making Muster's environment on {connection.login}, once for this version: {size}")
        _make_environment(connection, checkout, [] if whole else [*extras.packages(extras.BASE)])
    own = f"{checkout}/.venv/bin/python"
    return Installation(connection, base, checkout, python or own)


def _make_environment(connection: Connection, checkout: str, packages: Sequence[str]) -> None:
    words = ["bash", "-s", "--", checkout, os.environ.get("TORCH_INDEX", ""), *packages]
    try:
        connection.run(words, transfer.SCRIPT.read_bytes())
    except ConnectionLost:
        raise
    except MusterError as error:
        raise MusterError(
            f"{error}\nname a Python there that has {', '.join(packages or ['what Muster needs'])} "
            "with --login-python, if packages cannot be installed from there"
        ) from None


def _files() -> list[str]:
    """The checkout's files that are needed to run, in order, by relative name."""
    return sorted(
        str(path.relative_to(CHECKOUT))
        for needed in (*node_facts.PACKAGES, *OTHER_FILES)
        for path in [CHECKOUT / needed, *(CHECKOUT / needed).rglob("*")]
        if path.is_file() and "__pycache__" not in path.parts
    )


def _version(names: Sequence[str]) -> str:
    digest = sha256()
    for name in names:
        digest.update(f"\0{name}\0".encode() + (CHECKOUT / name).read_bytes())
    return digest.hexdigest()[:12]


def send_project(installation: Installation, project: Path) -> str:
    """Update the copy; return its folder on the login node.

    Raises:
        UsageError: git leaves too much untracked; the message says what to do.
        MusterError: it cannot be copied.
    """
    connection = installation.connection
    name = sha256(f"{socket.gethostname()}\0{project}".encode()).hexdigest()[:8]
    folder = f"{installation.folder}/projects/{project.name}-{name}"
    paths = project_snapshot.files_of(project)
    names = sorted(os.fsencode(path.relative_to(project)) for path in paths)
    listed = _send_files(connection, names, project, folder)
    connection.run(["env", "LC_ALL=C", "sh", "-c", REMOVE, "sh", folder, SENT], listed)
    return folder


def _send_files(connection: Connection, names: Iterable[bytes], source: Path, folder: str) -> bytes:
    """Send these files of a folder here into one there; return their list, as rsync reads it."""
    listed = b"".join(name + b"\0" for name in names)
    connection.run(["sh", "-c", MAKE, "sh", folder])
    connection.rsync(["--from0", "--files-from=-"], f"{source}/", f":{folder}/", listed)
    return listed
