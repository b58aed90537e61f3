"""Send this checkout to nodes that do not see it: what git would take along, and nothing else.

Files are overwritten and deleted there, so it goes into a folder only that was new or empty when
it came there first (see `claim`). Nodes may share a home with each other and not with this
machine: a folder that several of them see is written once.
"""

import secrets
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from configs.plugins import REPOSITORY
from configs.settings.launch import SshConfig
from launch.spec import NodeFacts
from launch.ssh import folder_marker, node_report, openssh
from muster.errors import MusterError

PACKAGES = ("configs", "launch", "train")
# Without git (from an archive, say) these are what a node needs.
NEEDED = (*PACKAGES, "slurm", "setup.cfg", "pyproject.toml", "constraints.txt", "Makefile")
TIMEOUT_S = 600.0
SHOWN = 4  # names of what is in the way


def send_checkout(found: Sequence[NodeFacts], config: SshConfig) -> list[NodeFacts]:
    """Bring the checkout of every node that has one of its own up to date, all at once.

    Returns the first node of each folder that was written.

    Raises:
        MusterError: a folder holds what is not ours, and nothing was sent anywhere; or rsync
            failed. One line for every node.
    """
    apart = [node for node in found if not node.shared]
    files = _files()
    with ThreadPoolExecutor(max_workers=16) as pool:
        identities = list(pool.map(lambda node: _claim(node, config), apart))
        _refuse([one for one in identities if isinstance(one, MusterError)])
        firsts = _one_of_each_folder(apart, list(map(str, identities)), config)
        sent = pool.map(lambda node: _send(node, config, files), firsts)
        _refuse([problem for problem in sent if problem is not None])
    return firsts


def rsync(
    node: NodeFacts,
    config: SshConfig,
    options: Sequence[str],
    folder: str,
    source: Path,
    stdin: str = "",
) -> "subprocess.CompletedProcess[str]":
    """rsync, through ssh, what is in `source` here into `folder` on `node`."""
    # ClearAllForwardings and the like are for rsync's ssh as for every other.
    shell = shlex.join(openssh.client(node.spec, config))
    host = node.spec.host
    target = f"{f'[{host}]' if ':' in host else host}:{folder}/"
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


def _known_to_git() -> list[str]:
    """What it tracks, and what it would; nothing where there is no git, or no repository."""
    argv = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        listed = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return [name for name in listed.stdout.split("\0") if name] if not listed.returncode else []


def _files() -> str:
    """Names of what to send, each ended by a NUL."""
    names = _known_to_git()
    if not names:
        names = [
            str(path.relative_to(REPOSITORY))
            for needed in NEEDED
            for path in [REPOSITORY / needed, *(REPOSITORY / needed).rglob("*")]
            if path.is_file() and "__pycache__" not in path.parts
        ]
    existing = [
        name for name in names if (REPOSITORY / name).exists()
    ]  # deleted, but not committed
    return "".join(f"{name}\0" for name in existing)


def _claim(node: NodeFacts, config: SshConfig) -> str | MusterError:
    """The identity of the node's folder, which is ours to write from here on; or why it is not."""
    folder = node.repository
    reply = node_report.ask(
        node.spec, config, folder_marker.__file__, [folder, secrets.token_hex(16)]
    )
    if isinstance(reply, str):
        return MusterError(reply)
    if "identity" in reply:
        return str(reply["identity"])
    if "failed" in reply:
        return MusterError(f"{node.name}: cannot write into {folder}: {reply['failed']}")
    names = reply["foreign"]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    mark = shlex.join(["touch", f"{folder}/{folder_marker.MARKER}"])
    return MusterError(
        f"{node.name}: {folder} holds {', '.join(names[:SHOWN])}{more}, which Muster did not send "
        "there, and to send the code would overwrite and delete files; name an empty or a new "
        "folder with --remote-dir, or, if all of it may go (a copy that an earlier version sent): "
        f"{openssh.typed(node.spec)} {mark}"
    )


def _one_of_each_folder(
    apart: Sequence[NodeFacts], identities: Sequence[str], config: SshConfig
) -> list[NodeFacts]:
    """The nodes less those whose folder is that of one before them."""
    firsts: dict[str, NodeFacts] = {}
    each = []
    for node, identity in zip(apart, identities, strict=True):
        first = firsts.setdefault(identity, node)
        if first is node or not _sees_folder_of(first, node, config):
            each.append(node)
    return each


def _sees_folder_of(first: NodeFacts, node: NodeFacts, config: SshConfig) -> bool:
    """Whether both have one folder, and not two copies of it, as machines of one image have."""
    name = f"{folder_marker.MARKER}-{secrets.token_hex(8)}"
    openssh.run(first.spec, config, ["touch", f"{first.repository}/{name}"])
    seen = openssh.run(node.spec, config, ["test", "-e", f"{node.repository}/{name}"])
    openssh.run(first.spec, config, ["rm", "-f", f"{first.repository}/{name}"])
    return seen.returncode == 0


def _send(node: NodeFacts, config: SshConfig, files: str) -> MusterError | None:
    """What went wrong."""
    folder = node.repository
    # A module that is gone here must be gone there, or it would still be imported.
    packages = [f"--include=/{name}/***" for name in PACKAGES]
    tidy = ["--delete", "--existing", "--ignore-existing", "--exclude=__pycache__", *packages]
    try:
        sent = rsync(node, config, ["--from0", "--files-from=-"], folder, REPOSITORY, files)
        if sent.returncode == 0:
            sent = rsync(node, config, [*tidy, "--exclude=*"], folder, REPOSITORY)
    except subprocess.TimeoutExpired:
        return MusterError(f"{node.name}: sending the code took longer than {TIMEOUT_S:.0f} s")
    if sent.returncode == 0:
        return None
    if "rsync: not found" in sent.stderr or "rsync: command not found" in sent.stderr:
        return MusterError(f"{node.name}: has no rsync; there: sudo apt-get install rsync")
    lines = [line for line in sent.stderr.splitlines() if line.strip()]
    why = lines[0] if lines else "without a word"
    return MusterError(f"{node.name}: sending the code failed: {why}")


def _refuse(problems: Sequence[MusterError]) -> None:
    if problems:
        raise MusterError("\n".join(map(str, problems)))
