"""A laptop beside the testbed: it reaches only node0's sshd, and shares no disk with the nodes.

How it works: the laptop is a network, a mount and a UTS namespace, which a sleeping process keeps
alive. A veth pair connects it to node0, which forwards nothing; its only route is for ssh. Its
home, the test's folder and the testbed's own are empty file systems, so that the laptop and the
nodes do not see each other's files there. Slurm's commands are hidden on the laptop.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from secrets import token_hex

from launch.virtual_cluster import daemons
from launch.virtual_cluster.ssh_daemons import FOLDER
from launch.virtual_cluster.virtual_nodes import STATE
from muster.checkout import CHECKOUT
from tests.cluster.testbeds import Cluster
from tests.commands import finish
from tests.launch.submit import wait_until

MUSTER = [sys.executable, str(CHECKOUT / "muster" / "command.py")]
SLURM = ("sbatch", "srun", "scontrol", "sinfo", "squeue", "scancel")
HOME = Path("/run/laptop")  # its user's home, as the laptop sees it; short, as sockets need
CARD, NET = "laptop0", "10.99.0"  # of node0
LOCAL = ("--launcher", "local", "--workers", "manual")


class Laptop:
    """A user's machine: a project, a folder for state, and a connection to node0."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self._folder = cluster, folder
        self.remote = folder / "remote"  # on the login node
        self.run_id = f"run-{token_hex(4)}"  # the testbed's nodes share one home
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "sleep", "infinity"],
            stdin=subprocess.DEVNULL,
        )
        self._begin()
        self.project, self.home = self.host_path(HOME / "project"), self.host_path(HOME)
        self.project.mkdir(parents=True)
        self.ssh_config = self._ssh_config()
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            "HOME": str(HOME),
            "XDG_STATE_HOME": str(HOME / "state"),
            "XDG_RUNTIME_DIR": str(HOME / "run"),
        }
        self.login = ["--login", "root@node0", "--login-config", str(HOME / "ssh_config")]
        self.login += ["--login-dir", str(self.remote), "--login-python", sys.executable]

    def host_path(self, path: Path) -> Path:
        """Return the path of a file of the laptop as this process sees it."""
        return Path(f"/proc/{self._holder.pid}/root", *path.parts[1:])

    def session(self) -> Path:
        """Return the session folder of the only command that was given."""
        (session,) = (self.remote / "sessions").iterdir()
        return session

    def run(self, program: str, *words: str, code: int = 0) -> subprocess.CompletedProcess:
        """Run `muster run WORDS -- t.py` through node0; its exit code must be `code`."""
        (self.project / "t.py").write_text(program)
        done = self.known("run", *self.login, *words, "--", "t.py")
        assert done.returncode == code, done.stderr
        return done

    def known(self, *words: str) -> subprocess.CompletedProcess:
        """Run a `muster` command on the laptop to its end."""
        return self.call(*MUSTER, *words)

    def popen(self, *argv: str) -> subprocess.Popen:
        """Start a command on the laptop, in the project."""
        return subprocess.Popen(
            [*self._enter(), "env", f"--chdir={HOME / 'project'}", *argv], env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def call(self, *argv: str) -> subprocess.CompletedProcess:
        return subprocess.CompletedProcess(argv, *finish(self.popen(*argv)))

    def link(self, state: str) -> None:
        """Set the link to node0 `up` or `down`."""
        done = self.cluster.exec("node0", "ip", "link", "set", CARD, state)
        assert done.returncode == 0, done.stderr

    def end(self) -> None:
        """End all processes of the laptop."""
        with Path(f"/proc/{self._holder.pid}/ns/net").open() as network:
            # The holder comes first: only this process can reap it, and the rest waits for that.
            self._holder.terminate()
            self._holder.wait()
            daemons.end(lambda: daemons.inside([Path(f"/proc/self/fd/{network.fileno()}")]))

    def _begin(self) -> None:
        pid = self._holder.pid
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        node0 = ["ip", "-netns", "muster-node0"]
        HOME.mkdir(exist_ok=True)
        hidden = (HOME, self._folder, STATE)
        tools = [found for name in SLURM if (found := shutil.which(name))]
        _run("ip", "link", "add", CARD, "netns", "muster-node0", "type", "veth",
             "peer", "name", "eth0", "netns", str(pid))  # fmt: skip
        _run(*node0, "address", "add", f"{NET}.1/30", "dev", CARD)
        _run(*node0, "link", "set", CARD, "up")
        for words in (
            f"ip address add {NET}.2/32 dev eth0", "ip link set eth0 up", "ip link set lo up",
            f"ip route add 10.10.1.1/32 via {NET}.1 dev eth0 onlink table 22", "hostname laptop",
            "ip rule add ipproto tcp dport 22 lookup 22",  # no other way out
            *(f"mount -t tmpfs tmpfs {folder}" for folder in hidden),
            *(f"mount --bind /dev/null {tool}" for tool in tools),
        ):  # fmt: skip
            _run(*self._enter(), *words.split())
        self.host_path(HOME / "run").mkdir(mode=0o700)

    def _ssh_config(self) -> Path:
        """Write the laptop's configuration, with its own copies of the key and the known hosts."""
        text = self.cluster.ssh_config.read_text().replace(str(FOLDER), str(HOME))
        for name in ("id_ed25519", "known_hosts"):
            shutil.copy(FOLDER / name, self.home / name)
        (self.home / "ssh_config").write_text(text)
        return self.home / "ssh_config"

    def _enter(self) -> list[str]:
        return ["nsenter", f"--target={self._holder.pid}", "--net", "--mount", "--uts", "--"]


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, (argv, done.stderr)
