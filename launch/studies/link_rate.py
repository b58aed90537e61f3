"""The testbed that cells with a link rate run on: up for as long as they need it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from configs.plugins import REPOSITORY
from muster.errors import MusterError

# Another program, until it is ended; by itself it ends after half a day.
BUSY = "import time\nend = time.monotonic() + 43200\nwhile time.monotonic() < end: pass"
TESTBED = str(REPOSITORY / "launch" / "testbed.py")


class RatedCluster:
    """Nodes with links of one rate; without a rate there is none, and nothing is done.

    Raises:
        MusterError: the testbed cannot be made; it says why.
    """

    def __init__(self, rate: str | None, nodes: int) -> None:
        self._rate, self._nodes = rate, nodes
        self.env: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._rate is not None:
            rate = [] if self._rate == "unlimited" else ["--rate", self._rate]
            _testbed("up", "--nodes", str(self._nodes), *rate)
            variables = _testbed("env").removeprefix("export ").split()
            self.env = dict(word.split("=", 1) for word in variables)
        return self

    def __exit__(self, *_: object) -> None:
        if self._rate is not None:
            _testbed("down")

    def flags(self, nodes: int) -> list[str]:
        """Where launch/submit.py finds that many of them."""
        if self._rate is None:
            return []
        hosts = Path(self.env["MUSTER_HOSTS"]).read_text(encoding="utf-8").split()[:nodes]
        config = self.env["MUSTER_SSH_CONFIG"]
        return ["--launcher=ssh", f"--hosts={','.join(hosts)}", f"--ssh-config={config}"]

    @contextmanager
    def busy(self, nodes: int, of: int) -> Iterator[None]:
        """The last `nodes` of the first `of` have another program on their cores."""
        programs = [
            subprocess.Popen(
                [sys.executable, TESTBED, "exec", f"node{of - 1 - number}", "--"]
                + [sys.executable, "-c", BUSY],
                stdin=subprocess.DEVNULL,
            )
            for number in range(nodes)
        ]
        try:
            yield
        finally:
            for program in programs:
                program.kill()
                program.wait()


def _testbed(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, TESTBED, *words], capture_output=True, text=True, timeout=180, check=False
    )
    if done.returncode:
        raise MusterError(done.stderr.strip().removeprefix("error: "))
    return done.stdout
