"""Make the environment on every node at once, where there is no internet from wheels sent there."""

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
from muster.errors import MusterError

NO_INTERNET = 75
TIMEOUT_S = 1800.0
SCRIPT = Path(__file__).with_suffix(".sh")
# Beside the checkout on the node, so that its next synchronisation does not carry it along.
WHEELS = ".venv/wheels"


def make_environments(
    nodes: Sequence[NodeFacts], config: SshConfig, say: Callable[[str], None]
) -> None:
    """Bring the environment of every node up to date; nodes that share a folder share it, too.

    Raises:
        MusterError: one line for every node on which it failed.
    """
    apart = transfer.send_checkout(nodes, config)
    together = [node for node in nodes if node.shared][:1]
    wheels: list[Path] = []

    def make(node: NodeFacts, folder: str = "") -> int | str:
        code, text = _make(node, config, folder)
        if code != NO_INTERNET or folder:
            return 0 if code == 0 else f"{text or node.name + ': without a word'}"
        return code

    with ThreadPoolExecutor(max_workers=16) as pool:
        first = list(pool.map(make, [*together, *apart]))
        without = [
            node
            for node, result in zip([*together, *apart], first, strict=True)
            if result == NO_INTERNET
        ]
        problems = [result for result in first if isinstance(result, str)]
        if without and not problems:
            say(f"no internet on {', '.join(node.name for node in without)}: gathering wheels here")
            wheels.append(_gather())
            sent = list(pool.map(lambda node: _send_wheels(node, config, wheels[0]), without))
            problems += [problem for problem in sent if problem]
            if not problems:
                second = pool.map(lambda node: make(node, WHEELS), without)
                problems += [result for result in second if isinstance(result, str)]
    if problems:
        raise MusterError("\n".join(problems))


def _make(node: NodeFacts, config: SshConfig, wheels: str) -> tuple[int, str]:
    """The script's exit code on a node, and what it said last."""
    words = ["bash", "-s", "--", node.repository, wheels, os.environ.get("TORCH_INDEX", "")]
    try:
        done = openssh.run(node.spec, config, words, SCRIPT.read_text(encoding="utf-8"), TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return 1, f"{node.name}: making the environment took longer than {TIMEOUT_S / 60:.0f} min"
    if done.returncode == 255:
        return 1, openssh.explain(node.spec, done.stderr)
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    return done.returncode, last if last.startswith(node.name) else f"{node.name}: {last}"


def _gather() -> Path:
    """All wheels that the environment is made of, as this machine's pip fetches them.

    Raises:
        MusterError: this machine cannot fetch them either.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "muster" / "wheels"
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


def _send_wheels(node: NodeFacts, config: SshConfig, wheels: Path) -> str | None:
    make = ["mkdir", "-p", "--", f"{node.repository}/{WHEELS}"]
    made = openssh.run(node.spec, config, make)
    if made.returncode:
        return f"{node.name}: {made.stderr.strip()}"
    sent = transfer.rsync(node, config, ["--delete"], f"{node.repository}/{WHEELS}", wheels)
    return f"{node.name}: {sent.stderr.strip()}" if sent.returncode else None
