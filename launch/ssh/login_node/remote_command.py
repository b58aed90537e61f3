"""A command on a login node, followed from here even if connections are lost."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from launch.ssh.login_node.connection import Connection, ConnectionLost
from launch.ssh.login_node.detached_command import STREAMS
from launch.ssh.login_node.installation import Installation
from muster.errors import MusterError

RETRY_S, MOST_S = 5.0, 60.0  # between two tries to connect again
GIVE_UP_S = 86400.0
SCRIPT = "launch/ssh/login_node/detached_command.py"


@dataclass
class RemoteCommand:
    """A command, by the folder of its session, and how much of its output was seen."""

    installation: Installation
    session: str
    seen: list[int] = field(default_factory=lambda: [0] * len(STREAMS))

    @property
    def _connection(self) -> Connection:
        return self.installation.connection

    def start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        """Start it as a login shell would; it continues even if this connection is lost."""
        command = ["bash", "-lc", 'exec "$@"', "bash", *argv]
        what = json.dumps({"argv": command, "env": dict(env), "cwd": cwd})
        self._connection.run([*self._script("start"), self.session], what)

    def follow(self, note: Callable[[list[int]], None]) -> int:
        """Print its output until it has ended; return its exit code. `note` gets the bytes seen.

        Ctrl-C is passed on; the second one detaches from the command.

        Raises:
            KeyboardInterrupt: the user detached.
            ConnectionLost: the login node was out of reach for a day.
            MusterError: the login node has lost the command.
        """
        is_interrupted, wait_s, deadline = False, RETRY_S, time.monotonic() + GIVE_UP_S
        while True:
            seen = sum(self.seen)
            try:
                return self._follow_once(note)
            except KeyboardInterrupt:
                if is_interrupted:
                    raise
                is_interrupted = self._interrupt()
            except ConnectionLost as error:
                if sum(self.seen) > seen:
                    wait_s, deadline = RETRY_S, time.monotonic() + GIVE_UP_S
                if time.monotonic() > deadline:
                    raise
                say(f"{error}; it goes on there, trying again in {wait_s:.0f} s")
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, MOST_S)

    def _interrupt(self) -> bool:
        """Send Ctrl-C; return whether that was possible."""
        try:
            self._connection.run([*self._script("interrupt"), self.session])
        except ConnectionLost as error:
            say(f"{error}; Ctrl-C was not passed on")
            return False
        say("Ctrl-C was passed on; again to leave it running there")
        return True

    def _follow_once(self, note: Callable[[list[int]], None]) -> int:
        self._connection.open()
        words = [*self._script("follow"), self.session, *map(str, self.seen)]
        process = subprocess.Popen(
            self._connection.command(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is for this process
        )
        assert process.stdout is not None and process.stderr is not None
        try:
            while header := process.stdout.readline().split():
                stream, rest = int(header[0]), header[1].decode()
                if not stream:
                    return self._ended(rest)
                self._show(stream, process.stdout, int(rest))
                note(self.seen)
            raise ConnectionLost(self._why_lost(process.stderr.read()))
        finally:
            process.terminate()
            process.wait()
            for pipe in (process.stdout, process.stderr):  # their ends could be those of the master
                pipe.close()

    def _show(self, stream: int, source: IO[bytes], size: int) -> None:
        data = source.read(size)
        target = (sys.stdout if stream == 1 else sys.stderr).buffer
        target.write(data)
        target.flush()
        self.seen[stream - 1] += len(data)

    def _ended(self, code: str) -> int:
        if code == "lost":
            login = self._connection.login
            raise MusterError(
                f"{login} ended the command, perhaps by a restart; a job that was submitted goes "
                f"on: muster jobs list --login {login}"
            )
        return int(code)

    def _why_lost(self, error_text: bytes) -> str:
        lines = error_text.decode(errors="replace").strip().splitlines()
        return f"{self._connection.login}: {lines[-1] if lines else 'the connection was lost'}"

    def _script(self, verb: str) -> list[str]:
        return [*self.installation.script(SCRIPT), verb]


def say(line: str) -> None:
    """Tell the user about the connection, apart from the command's output."""
    print(line, file=sys.stderr, flush=True)
