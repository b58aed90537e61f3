"""Ask every node at once what it is like, and say everything that is wrong at once."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from configs.settings.launch import SshConfig
from launch.nodes import node_facts, route
from launch.spec import NodeSpec
from launch.ssh import folder_marker, openssh
from muster.errors import MusterError

TIMEOUT_S = 60.0
AT_ONCE = 16
# Of the checkout on nodes that do not see this one, in the home there.
FOLDER = "muster"
RUN_STDIN = "import sys; exec(compile(sys.stdin.read(), 'script', 'exec'))"

Probe = Mapping[str, Any]


def ask_all(
    nodes: Sequence[NodeSpec], config: SshConfig, request: Mapping[str, Any]
) -> list[Probe | str]:
    """What each node says of itself, or one line on why it does not."""
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        words = [json.dumps(request)]
        return list(pool.map(lambda node: ask(node, config, node_facts.__file__, words), nodes))


def routes(
    nodes: Sequence[NodeSpec], config: SshConfig, to: Sequence[str]
) -> list[Mapping[str, str]]:
    """The own address from which each node sends to each of those in `to`."""
    words = [json.dumps({"to": list(to)})]
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        replies = pool.map(lambda node: ask(node, config, route.__file__, words), nodes)
        return [{} if isinstance(one, str) else one for one in replies]


def must_answer(answers: Sequence[Probe | str]) -> list[Probe]:
    """The probes of nodes that must all have answered.

    Raises:
        MusterError: some did not; a line for each.
    """
    silent = [answer for answer in answers if isinstance(answer, str)]
    if silent:
        raise MusterError("\n".join(silent))
    return [answer for answer in answers if not isinstance(answer, str)]


def request(folder: str | None, proof: Path | None, here: Path) -> dict[str, Any]:
    """What a probe is asked; `proof` is a file that only a shared file system shows the node."""
    return {
        "folder": folder or FOLDER,
        "named": folder is not None,
        "proof": str(proof) if proof is not None else None,
        "here": str(here),
        "marker": folder_marker.MARKER,
        "harmless": folder_marker.HARMLESS,
        "python": os.environ.get("MUSTER_PYTHON"),
        "ports": [],
    }


def ask(
    node: NodeSpec, config: SshConfig, script: str, words: Sequence[str]
) -> dict[str, Any] | str:
    """What the script, a module whose text is sent, prints there; or one line on why nothing."""
    source = Path(script).read_text(encoding="utf-8")
    try:
        done = openssh.run(node, config, ["python3", "-c", RUN_STDIN, *words], source, TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"{node.name}: no answer within {TIMEOUT_S:.0f} s"
    for line in done.stdout.splitlines():
        if line.startswith(node_facts.MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(node_facts.MARK))
            return answer
    if done.returncode == 255:
        return openssh.explain(node, done.stderr)
    if "python3" in done.stderr and "not found" in done.stderr:
        return f"{node.name}: has no python3; there: sudo apt-get install python3 python3-venv"
    last = done.stderr.strip().splitlines()[-1:] or ["without a word"]
    return f"{node.name}: its Python could not describe it: {last[0]}"
