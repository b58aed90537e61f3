"""A testbed as tests see it, and `launch/testbed.py` as a user runs it."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.checkout import CHECKOUT
from tests.commands import call

TESTBED = str(CHECKOUT / "launch" / "testbed.py")
STATE = Path("/run/muster-testbed")


def testbed(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `python launch/testbed.py WORDS` to its end."""
    return call(sys.executable, TESTBED, *words, env=env)


testbed.__test__ = False  # type: ignore[attr-defined]  # its name begins like a test's


@dataclass(frozen=True)
class Cluster:
    """The testbed that is up: what commands on the box need to use it and to enter its nodes."""

    env: dict[str, str]
    ssh_config: Path
    hosts: list[str]

    def exec(
        self, node: str, *argv: str, private: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node; with `private`, where sshd's sessions are."""
        flags = ["--private"] if private else []
        return testbed("exec", *flags, node, "--", *argv)

    def ssh(self, node: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Log in from the box."""
        return self.run("ssh", "-F", str(self.ssh_config), node, *argv)

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the box, which is the cluster's login node."""
        return call(*argv, env=self.env)


def bring_up(*flags: str, env: Mapping[str, str] | None = None) -> Cluster:
    """Make sure that a testbed with `flags` is up."""
    done = testbed("up", *flags, env=env)
    if "make it again" in done.stderr:  # a test has killed a part of it
        take_down()
        done = testbed("up", *flags, env=env)
    assert done.returncode == 0, done.stderr
    message = testbed("env").stdout
    variables = dict(word.split("=", 1) for word in message.removeprefix("export ").split())
    return Cluster(
        env=variables,
        ssh_config=Path(variables["MUSTER_SSH_CONFIG"]),
        hosts=Path(variables["MUSTER_HOSTS"]).read_text().split(),
    )


def take_down() -> None:
    done = testbed("down")
    assert done.returncode == 0, done.stderr
