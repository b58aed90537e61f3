"""Send this checkout to nodes that do not see it: what git would take along, and nothing else."""

import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from configs.errors import MusterError
from configs.launching import SshConfig
from configs.plugins import REPOSITORY
from launch.machines import openssh
from launch.spec import NodeFacts

PACKAGES = ("configs", "launch", "train")
# Without git (from an archive, say) these are what a node needs.
NEEDED = (*PACKAGES, "slurm", "setup.cfg", "pyproject.toml", "constraints.txt", "Makefile")
TIMEOUT_S = 600.0


def send_checkout(nodes: Sequence[NodeFacts], config: SshConfig) -> None:
    """Bring the checkout of every node that has one of its own up to date, all at once.

    Raises:
        MusterError: rsync failed; one line for every node where it did.
    """
    files = _files()
    with ThreadPoolExecutor(max_workers=16) as pool:
        apart = [node for node in nodes if not node.shared]
        problems = list(pool.map(lambda node: _send(node, config, files), apart))
    if found := [problem for problem in problems if problem]:
        raise MusterError("\n".join(found))


def rsync(
    node: NodeFacts,
    config: SshConfig,
    options: Sequence[str],
    folder: str,
    *,
    source: Path = REPOSITORY,
    stdin: str = "",
) -> "subprocess.CompletedProcess[str]":
    """rsync, through ssh, what is in `source` here into `folder` on `node`."""
    # ClearAllForwardings and the like are for rsync's ssh as for every other.
    shell = shlex.join(openssh.client(node.spec, config))
    target = f"{node.spec.host}:{folder}/"
    argv = ["rsync", "--archive", "--compress", "--protect-args", "-e", shell, *options]
    return subprocess.run(
        [*argv, "--", f"{source}/", target],
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )


def _files() -> str:
    """Names of what to send, each ended by a NUL."""
    listed = subprocess.run(
        ["git", "-C", str(REPOSITORY), "ls-files", "-z", "-co", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        names = [name for name in listed.stdout.split("\0") if name]
    else:
        names = [
            str(path.relative_to(REPOSITORY))
            for needed in NEEDED
            for path in [REPOSITORY / needed, *(REPOSITORY / needed).rglob("*")]
            if path.is_file() and "__pycache__" not in path.parts
        ]
    there = [name for name in names if (REPOSITORY / name).exists()]  # deleted, but not committed
    return "".join(f"{name}\0" for name in there)


def _send(node: NodeFacts, config: SshConfig, files: str) -> str | None:
    """What went wrong, in one line."""
    make = ["mkdir", "-p", "--", node.repository]
    # A module that is gone here must be gone there, or it would still be imported.
    packages = [f"--include=/{name}/***" for name in PACKAGES]
    tidy = ["--delete", "--existing", "--ignore-existing", "--exclude=__pycache__", *packages]
    try:
        made = openssh.run(node.spec, config, make)
        if made.returncode:
            return f"{node.name}: cannot make {node.repository}: {made.stderr.strip()}"
        sent = rsync(node, config, ["--from0", "--files-from=-"], node.repository, stdin=files)
        if sent.returncode == 0:
            sent = rsync(node, config, [*tidy, "--exclude=*"], node.repository)
    except subprocess.TimeoutExpired:
        return f"{node.name}: sending the code took longer than {TIMEOUT_S:.0f} s"
    if sent.returncode == 0:
        return None
    if "rsync: not found" in sent.stderr or "rsync: command not found" in sent.stderr:
        return f"{node.name}: has no rsync; there: sudo apt-get install rsync"
    lines = [line for line in sent.stderr.splitlines() if line.strip()]
    return f"{node.name}: sending the code failed: {lines[0] if lines else 'without a word'}"
