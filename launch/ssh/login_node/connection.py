"""Run all commands on a login node through one ssh connection.

How it works: the first command opens a master connection (`ssh -fN`), for which ssh may ask for a
password or a second factor. Each later command goes through the master's socket, and ssh does
not ask again. The master ends ten minutes after the last command that used it. The socket is in a
folder that only this user can enter. ssh checks host keys: it shows an unknown key and asks whether
it is right. The user's own configuration decides on names, keys and jump hosts. Agents, X11 and
ports are not forwarded.

If the connection is lost, each command that uses it ends with ssh's own exit code, 255. Whatever
such a command has started on the login node continues (see `session.sh`).
"""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from configs.settings.launch import ONE_WORKER
from launch.deadlines import LOGIN_CONNECTION_STAYS_S
from launch.nodes.survey import last_line
from launch.spec import NodeSpec
from launch.ssh import openssh
from muster.errors import MusterError, UsageError
from muster.ownership import user_name
from muster.terminal import TIP, in_one_line

ELSEWHERE = "set XDG_RUNTIME_DIR to a folder that only you can use"
# A command's stdout and stderr begin after this line. Start-up files of the login shell may print
# before it.
BEGIN = b"muster:begin\n"
MARKED = 'echo muster:begin; echo muster:begin >&2; exec "$@"'


class ConnectionLost(MusterError):
    """The login node cannot be reached, or the connection to it was lost."""


class Connection:
    """A connection to `login`, such as me@cluster; `file` replaces ~/.ssh/config."""

    def __init__(self, login: str, file: str | None = None) -> None:
        if not login or login.startswith("-") or any(letter.isspace() for letter in login):
            raise UsageError(f"--login {login!r}: expected a login as for ssh, such as me@cluster")
        self.login = login
        self._spec = NodeSpec(login, ONE_WORKER)
        name = sha256(f"{login}\0{file}".encode()).hexdigest()[:16]
        from_file = ["-F", file] if file is not None else []
        host_options = openssh.host_options(login, *from_file, unknown="ask")
        socket = str(_private_folder() / name)
        options = {**openssh.COMMON_OPTIONS, **host_options, "ControlPath": socket}
        self._ssh = ["ssh", *from_file, *openssh.option_words(options)]

    def open(self) -> None:
        """Log in, unless the connection is already open; ssh may prompt the user.

        Raises:
            ConnectionLost: ssh cannot log in; the message says why, and what to do.
        """
        check = [*self._ssh, "-O", "check", "--", self.login]
        if not subprocess.run(check, capture_output=True, check=False).returncode:
            return
        master = openssh.option_words(
            {"ControlMaster": "yes", "ControlPersist": str(LOGIN_CONNECTION_STAYS_S)}
        )
        with tempfile.TemporaryFile("w+") as errors:  # the master would hold a pipe open
            # -fN comes first: ssh refuses it after the option SessionType
            argv = [self._ssh[0], "-fN", *self._ssh[1:], *master, "--", self.login]
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=errors, check=False)
            errors.seek(0)
            if done.returncode:
                raise ConnectionLost(openssh.explain(self._spec, errors.read()))

    def shell(self) -> list[str]:
        """The ssh command for the open connection, without the host: rsync needs only this part."""
        return [*self._ssh, "-o", "ControlMaster=no", "-o", "BatchMode=yes"]

    def command(
        self, words: Sequence[str], *, terminal: bool = False, silent: bool = False
    ) -> list[str]:
        """The local command that runs `words` on the login node; `silent`: ssh prints nothing."""
        flags = ["-t" if terminal else "-T", *(["-q"] if silent else [])]
        return [*self.shell(), *flags, "--", self.login, shlex.join(words)]

    def run(self, words: Sequence[str], stdin: bytes = b"") -> str:
        """Run the command `words` on the login node to its end; return its stdout.

        Raises:
            ConnectionLost: the connection was lost in the meantime.
            MusterError: the command failed; the message is its last line.
        """
        self.open()
        argv = self.command(marked(words))
        done = subprocess.run(argv, input=stdin, capture_output=True, check=False)
        if done.returncode == openssh.NOT_CONNECTED:
            error_text = done.stderr.decode(errors="replace").strip()
            raise ConnectionLost(openssh.explain(self._spec, error_text))
        of_shell, begin, output = done.stdout.partition(BEGIN)
        if not begin:
            text = last_line((of_shell + done.stderr).decode(errors="replace"))
            raise self._failed(
                f"the start-up file of its login shell, such as ~/.bashrc, exits early: {text}"
            )
        if done.returncode:
            error_text = done.stderr.rpartition(BEGIN)[2].decode(errors="replace")
            last = last_line(in_one_line(error_text), f"exit code {done.returncode}")
            raise self._failed(last.removeprefix("error: "))
        return output.decode(errors="replace")

    def rsync(self, options: Sequence[str], source: str, target: str, stdin: bytes = b"") -> str:
        """Copy with rsync, and return its stdout; a path on the login node begins with `:`.

        Raises:
            ConnectionLost: the connection was lost in the meantime.
            UsageError: this machine has no rsync.
            MusterError: rsync failed.
        """
        self.open()
        paths = (source, target)
        places = [f"{self.login}{path}" if path.startswith(":") else path for path in paths]
        every_time = ["--no-owner", "--no-group", "--partial"]
        done = openssh.rsync(self.shell(), [*every_time, *options], *places, stdin=stdin)
        if not done.returncode:
            return done.stdout
        text = done.stderr
        if problem := openssh.rsync_problem(text):
            raise MusterError(f"{self.login}: {problem}")
        if done.returncode == openssh.NOT_CONNECTED or "connection unexpectedly closed" in text:
            raise ConnectionLost(openssh.explain(self._spec, text))
        lines = [line for line in text.splitlines() if line.strip()] or ["no message"]
        raise self._failed(f"rsync failed: {lines[0]}")

    def _failed(self, line: str) -> MusterError:
        remedy = "\ntip: make room there, or choose a folder on another disk with --login-dir"
        is_full = any(words in line for words in ("No space left", "Disk quota exceeded"))
        return MusterError(f"{self.login}: {line}{remedy if is_full else ''}")


def marked(words: Sequence[str]) -> list[str]:
    """The command that first prints BEGIN to stdout and stderr, and then runs `words`."""
    return ["sh", "-c", MARKED, "sh", *words]


def _private_folder() -> Path:
    """The folder for the connections' sockets; its path is short, and only this user can enter it.

    Raises:
        UsageError: the folder cannot be created, or another user owns it or may enter it.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    temporary = Path(tempfile.gettempdir(), f"muster-{os.getuid()}")
    folder = Path(runtime, "muster") if runtime else temporary
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror} (for ssh's socket){TIP}{ELSEWHERE}") from None
    state = folder.lstat()
    if state.st_uid != os.getuid():
        raise UsageError(
            f"{folder} belongs to {user_name(state.st_uid)}, not to you{TIP}{ELSEWHERE}"
        )
    if folder.is_symlink():
        raise UsageError(
            f"{folder} is a symbolic link; ssh's socket needs a folder{TIP}{ELSEWHERE}"
        )
    if state.st_mode & 0o077:
        raise UsageError(f"{folder}: other users may enter it\ntip: run: chmod 700 {folder}")
    return folder
