"""Make the environment on all nodes at once."""

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from configs.settings.launch import SshConfig
from launch.spec import NodeFacts
from launch.ssh import openssh, transfer

TIMEOUT_S = 1800.0
SCRIPT = Path(__file__).with_suffix(".sh")


def make_environments(nodes: Sequence[NodeFacts], config: SshConfig) -> None:
    """Update the environment of every node; nodes that share a folder share it, too.

    Raises:
        MusterError: one line for every node on which it failed.
    """
    apart = transfer.send_checkout(nodes, config)
    each = [*[node for node in nodes if node.shared][:1], *apart]
    with ThreadPoolExecutor(openssh.AT_ONCE) as pool:
        made = pool.map(lambda node: _make(node, config), each)
        transfer.fail([problem for problem in made if problem])


def _make(node: NodeFacts, config: SshConfig) -> str | None:
    """The error on a node, from the script's last line; None if it succeeded."""
    words = ["bash", "-s", "--", node.repository, os.environ.get("TORCH_INDEX", "")]
    try:
        done = openssh.run(node.spec, config, words, SCRIPT.read_text(encoding="utf-8"), TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"{node.name}: making the environment took longer than {TIMEOUT_S / 60:.0f} min"
    if done.returncode == 0:
        return None
    if done.returncode == openssh.FAILED:
        return openssh.explain(node.spec, done.stderr)
    last = (done.stderr.strip().splitlines() or ["no message"])[-1].strip()
    return last if last.startswith(node.name) else f"{node.name}: {last}"
