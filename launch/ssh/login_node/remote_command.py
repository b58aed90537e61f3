"""A command on a login node, followed from here even if connections are lost."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from selectors import EVENT_READ, DefaultSelector

from launch.deadlines import LOGIN_TRIED_AGAIN_MOST_S, LOGIN_TRIED_AGAIN_S
from launch.ssh import openssh
from launch.ssh.login_node.connection import BEGIN, ConnectionLost, marked
from launch.ssh.login_node.installation import Installation
from muster.errors import MusterError

SCRIPT = "launch/ssh/login_node/session.sh"


@dataclass
class RemoteCommand:
    """A command on a login node, its session's folder, and how much of its output was printed."""

    installation: Installation
    session: str
    seen: list[int] = field(default_factory=lambda: [0, 0])  # bytes of out, of err

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        """Start the command in a login shell; it continues even if this connection is lost."""
        lines = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
        lines += [
            f"CDPATH= cd -- {shlex.quote(cwd)} || exit",
            f"exec {shlex.join(argv)} </dev/null",
        ]
        self._ask("start", "\n".join(lines))

    def follow(self, note: Callable[[list[int]], None]) -> int:
        """Print the command's output to its end; return its exit code.

        `note` is called with `seen` after each part of the output. The first Ctrl-C is passed on to
        the command. The second Ctrl-C ends this call, while the command continues.

        Raises:
            KeyboardInterrupt: after the second Ctrl-C.
            MusterError: the login node has lost the command.
        """
        is_interrupted = False
        wait_s = LOGIN_TRIED_AGAIN_S
        while True:
            seen = sum(self.seen)
            try:
                return self._follow_once(note)
            except KeyboardInterrupt:
                if is_interrupted:
                    raise
                is_interrupted = self._interrupt()
            except ConnectionLost as error:
                wait_s = LOGIN_TRIED_AGAIN_S if sum(self.seen) > seen else wait_s
                say(f"{error}; the command continues there; trying again in {wait_s:.0f} s")
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, LOGIN_TRIED_AGAIN_MOST_S)

    def _interrupt(self) -> bool:
        """Send SIGINT to the command; return whether that was possible."""
        try:
            self._ask("interrupt")
        except ConnectionLost as error:
            say(f"{error}; Ctrl-C was not passed on")
            return False
        say("Ctrl-C was passed on; press it again to leave the command running there")
        return True

    def _follow_once(self, note: Callable[[list[int]], None]) -> int:
        connection = self.installation.connection
        connection.open()
        words = marked(self._words("follow", *map(str, self.seen)))
        process = subprocess.Popen(
            connection.command(words, silent=True),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that a terminal's Ctrl-C reaches only this process
        )
        assert process.stdout is not None and process.stderr is not None
        targets = sys.stdout.buffer, sys.stderr.buffer
        # the end of the output so far, which may contain a part of BEGIN; None after BEGIN
        before: list[bytes | None] = [b"", b""]
        with process, DefaultSelector() as pipes:
            pipes.register(process.stdout, EVENT_READ, 0)
            pipes.register(process.stderr, EVENT_READ, 1)
            try:
                while pipes.get_map():
                    for key, _ in pipes.select():
                        if not (data := os.read(key.fd, 65536)):
                            pipes.unregister(key.fileobj)
                        if (of_shell := before[key.data]) is not None:
                            of_shell, begin, data = (of_shell + data).partition(BEGIN)
                            before[key.data] = None if begin else of_shell[-len(BEGIN) :]
                        targets[key.data].write(data)
                        targets[key.data].flush()
                        self.seen[key.data] += len(data)
                        note(self.seen)
            except BaseException:
                process.terminate()
                raise
        login = connection.login
        is_lost = process.returncode == openssh.NOT_CONNECTED
        code = "" if is_lost else self._ask("end").strip()
        if not code:
            raise ConnectionLost(f"{login}: the connection was lost")
        if code == "lost":
            raise MusterError(
                f"{login} ended the command, perhaps because it restarted; submitted jobs continue"
                f"\ntip: to list them: muster jobs list --login {login}"
            )
        if not re.fullmatch(r"\d{1,3}", code):
            raise MusterError(f"{login}: {code[:80]!r} is not an exit code")
        return int(code)

    def _ask(self, verb: str, stdin: str = "") -> str:
        return self.installation.connection.run(self._words(verb), stdin.encode())

    def _words(self, verb: str, *more: str) -> list[str]:
        return ["bash", f"{self.installation.checkout}/{SCRIPT}", verb, self.session, *more]


def say(line: str) -> None:
    """Print a line about the connection to stderr, apart from the command's output."""
    print(line, file=sys.stderr, flush=True)
