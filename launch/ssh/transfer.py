"""Send this checkout to nodes that do not see it: what git would take along, and nothing else.

Files are overwritten and deleted there, so it goes into a folder only that was new or empty when
it came there first (see `node_facts.claim`). Nodes may share a home with each other and not with
this machine: a folder that several of them see is written once.
"""

import secrets
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from configs.plugins import REPOSITORY
from configs.settings.launch import SshConfig
from launch.agent.processes import process_tree
from launch.nodes import node_facts
from launch.nodes.survey import Survey
from launch.spec import NodeFacts
from launch.ssh import openssh
from muster.errors import MusterError

# What a node needs besides the packages where git does not say: in an archive, for instance.
OTHER_FILES = "slurm setup.cfg pyproject.toml constraints.txt Makefile".split()
TIMEOUT_S = 600.0
TICK_S = 0.05
SHOWN = 4  # names of files in the way


def send_checkout(
    found: Sequence[NodeFacts], config: SshConfig, more: Mapping[Path, str] | None = None
) -> list[NodeFacts]:
    """Bring the checkout of every node that has one of its own up to date, all at once.

    `more`: folders here, and where each goes below the checkout there. Returns the first node of
    each folder that was written.

    Raises:
        MusterError: a folder holds what is not ours, and nothing was sent anywhere; or rsync
            failed. One line for every node.
    """
    apart = [node for node in found if not node.shared]
    if not apart:
        return []
    files, before = _files(), process_tree.children()
    transport = openssh.transport([node.spec for node in apart], config)
    with Survey(transport) as survey, ThreadPoolExecutor(openssh.AT_ONCE) as pool:
        firsts = _claimed(apart, survey)
        try:
            sent = list(pool.map(lambda at: _send(apart[at], config, files, more or {}), firsts))
        except BaseException:  # a signal: else the pool would wait for all that is being sent
            end = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True})
            end.start()
            while end.is_alive():
                process_tree.ask([*(process_tree.children() - before)])
                time.sleep(TICK_S)
            raise
        fail([problem for problem in sent if problem])
    return [apart[index] for index in firsts]


def rsync(
    node: NodeFacts,
    config: SshConfig,
    options: Sequence[str],
    folder: str,
    source: Path,
    stdin: str = "",
) -> "subprocess.CompletedProcess[str]":
    """Copy what is in `source` here into `folder` on `node`, with rsync through ssh."""
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
    """The files that git tracks, or would; none where there is no git, or no repository."""
    argv = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        listed = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return [name for name in listed.stdout.split("\0") if name] if not listed.returncode else []


def package_files() -> list[str]:
    """The files of this checkout that run anything, in order, by their names in it."""
    return sorted(
        str(path.relative_to(REPOSITORY))
        for needed in (*node_facts.PACKAGES, *OTHER_FILES)
        for path in [REPOSITORY / needed, *(REPOSITORY / needed).rglob("*")]
        if path.is_file() and "__pycache__" not in path.parts
    )


def _files() -> str:
    """Names of what to send, each ended by a NUL."""
    names = _known_to_git() or package_files()
    # git also names what is deleted and not committed
    # `logs` as a folder, of which nothing in it is sent: snapshots are put there
    return "".join(f"{name}\0" for name in [*names, "logs"] if (REPOSITORY / name).exists())


def _claimed(nodes: Sequence[NodeFacts], survey: Survey) -> list[int]:
    """The index of the first node of each folder, all of which are ours to write from here on.

    Raises:
        MusterError: some folders are not; a line for each.
    """
    folders = {str(index): node.repository for index, node in enumerate(nodes)}
    tokens = {index: f"-{secrets.token_hex(8)}" for index in folders}
    answers = survey.ask(node_facts.claim, folders=folders, tokens=tokens)
    problems = survey.silent(answers)
    problems |= {
        index: _objection(nodes[index], answer.value)
        for index, answer in answers.items()
        if answer.value
    }
    fail([problems[index] for index in sorted(problems)])
    seen = survey.ask(node_facts.claimed_by, folders=folders, tokens=tokens)
    return [
        index
        for index in range(len(nodes))
        if index not in seen or min(map(int, seen[index].value), default=index) == index
    ]


def _objection(node: NodeFacts, reply: Mapping[str, Any]) -> str:
    """Why the code does not go into a node's folder, and what to do."""
    folder = node.repository
    if "failed" in reply:
        return f"{node.name}: cannot write into {folder}: {reply['failed']}"
    names = reply["foreign"]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    mark = shlex.join(["touch", f"{folder}/{node_facts.MARKER}"])
    return (
        f"{node.name}: {folder} holds {', '.join(names[:SHOWN])}{more}, which Muster did not send "
        "there, and to send the code would overwrite and delete files; name an empty or a new "
        "folder with --remote-dir, or, if all of it may go (a copy that an earlier version sent): "
        f"{openssh.typed(node.spec)} {mark}"
    )


def _send(node: NodeFacts, config: SshConfig, files: str, more: Mapping[Path, str]) -> str | None:
    """Copy the files, then delete modules that are gone here; returns what went wrong."""
    folder = node.repository
    # A module that is gone here would still be imported there.
    packages = [f"--include=/{name}/***" for name in node_facts.PACKAGES]
    tidy = ["--delete", "--existing", "--ignore-existing", "--exclude=__pycache__", *packages]
    try:
        listed = ["--from0", "--files-from=-"]
        sent = rsync(node, config, listed, folder, REPOSITORY, files)
        if sent.returncode == 0:
            sent = rsync(node, config, [*tidy, "--exclude=*"], folder, REPOSITORY)
        for source, place in more.items():
            if sent.returncode == 0:
                sent = rsync(node, config, [], f"{folder}/{place}", source)
    except subprocess.TimeoutExpired:
        return f"{node.name}: sending the code took longer than {TIMEOUT_S:.0f} s"
    if sent.returncode == 0:
        return None
    if "rsync: not found" in sent.stderr or "rsync: command not found" in sent.stderr:
        return f"{node.name}: has no rsync; there: sudo apt-get install rsync"
    lines = [line for line in sent.stderr.splitlines() if line.strip()]
    return f"{node.name}: sending the code failed: {lines[0] if lines else 'without a word'}"


def fail(problems: Sequence[str]) -> None:
    """Stop if there are any problems.

    Raises:
        MusterError: a line for each.
    """
    if problems:
        raise MusterError("\n".join(problems))
