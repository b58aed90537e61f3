"""Make the environment on all nodes at once; those without internet are sent the wheels."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from configs.plugins import REPOSITORY
from configs.settings.launch import SshConfig
from launch.spec import NodeFacts
from launch.ssh import openssh, transfer
from muster.cache_folder import cache_folder
from muster.errors import MusterError

NO_INTERNET = 75
TIMEOUT_S = 1800.0
SCRIPT = Path(__file__).with_suffix(".sh")
# In .venv, which git ignores, so that sending the checkout leaves it alone.
WHEELS = ".venv/wheels"


def make_environments(
    nodes: Sequence[NodeFacts], config: SshConfig, say: Callable[[str], None]
) -> None:
    """Bring the environment of every node up to date; nodes that share a folder share it, too.

    Raises:
        MusterError: one line for every node on which it failed.
    """
    apart = transfer.send_checkout(nodes, config)
    each = [*[node for node in nodes if node.shared][:1], *apart]
    with ThreadPoolExecutor(openssh.AT_ONCE) as pool:
        made = list(pool.map(lambda node: _make(node, config), each))
        transfer.fail([text for code, text in made if code not in (0, NO_INTERNET)])
        offline = [node for node, (code, _) in zip(each, made, strict=True) if code == NO_INTERNET]
        if not offline:
            return
        say(f"no internet on {', '.join(node.name for node in offline)}: gathering wheels here")
        wheels = _gather()
        again = list(pool.map(lambda node: _make_from(wheels, node, config), offline))
    transfer.fail([text for code, text in again if code])


def _make(node: NodeFacts, config: SshConfig, wheels: str = "") -> tuple[int, str]:
    """The script's exit code on a node, and its last line."""
    words = ["bash", "-s", "--", node.repository, wheels, os.environ.get("TORCH_INDEX", "")]
    try:
        done = openssh.run(node.spec, config, words, SCRIPT.read_text(encoding="utf-8"), TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return 1, f"{node.name}: making the environment took longer than {TIMEOUT_S / 60:.0f} min"
    if done.returncode == openssh.FAILED:
        return 1, openssh.explain(node.spec, done.stderr)
    last = (done.stderr.strip().splitlines() or ["without a word"])[-1].strip()
    return done.returncode, last if last.startswith(node.name) else f"{node.name}: {last}"


def _make_from(wheels: Path, node: NodeFacts, config: SshConfig) -> tuple[int, str]:
    """As `_make`, from wheels that are sent there first."""
    folder = f"{node.repository}/{WHEELS}"
    done = openssh.run(node.spec, config, ["mkdir", "-p", "--", folder])
    if done.returncode == 0:
        done = transfer.rsync(node, config, ["--delete"], folder, wheels)
    if done.returncode:
        return done.returncode, f"{node.name}: {done.stderr.strip()}"
    return _make(node, config, WHEELS)


def _gather() -> Path:
    """All wheels that the environment is made of, as this machine's pip fetches them.

    Raises:
        MusterError: this machine cannot fetch them either.
    """
    folder = cache_folder() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    constraint = ["--constraint", str(REPOSITORY / "constraints.txt")]
    into = ["--dest", str(folder), "--find-links", str(folder)]
    for wanted in ([str(REPOSITORY)], ["setuptools", "wheel"]):
        done = subprocess.run(
            [*pip, "download", *into, *constraint, *wanted],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            check=False,
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["without a word"]
            raise MusterError(f"this machine cannot fetch the packages either: {last[0]}")
    return folder
