"""Send this checkout to nodes that do not see it, and set it up there.

Files that .gitignore names are not sent. Sending overwrites and deletes files on the node, so the
folder must have been new or empty at the first copy (see `node_facts.claim`). Several nodes may see
the same folder, in a home that they share with each other but not with this machine. Such a folder
is written only once.
"""

import os
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from configs import console
from configs.settings.launch import Sending
from configs.settings.remote import SshConfig
from launch.agent.processes import process_tree
from launch.deadlines import SSH_SETUP_S, SSH_TRANSFER_S, SSH_TRANSFER_TICK_S
from launch.nodes import node_data, node_facts
from launch.nodes.answers import Claim
from launch.nodes.survey import Survey, last_line
from launch.spec import NodeFacts, NodeSpec
from launch.ssh import openssh
from muster.checkout import CHECKOUT, IS_INSTALLED
from muster.errors import MusterError
from muster.printable import listed, printable

# Only modules are deleted there: otherwise modules that were removed here could still be imported.
RULES = [
    *("--exclude=__pycache__", "--exclude=/.git", "--filter=:- .gitignore", "--delete"),
    *(f"--filter=risk /{name}/***" for name in node_facts.PACKAGES),
    "--filter=protect *",
]
SCRIPT = Path(__file__).with_name("node_setup.sh")  # creates a node's environment
SENDING = "send-checkout"  # the beginning of the threads' names
LISTED = 4  # at most this many files that are in the way are named


def send_checkout(
    nodes: Sequence[NodeFacts], config: SshConfig, extra: Mapping[Path, str] | None = None
) -> list[NodeFacts]:
    """Update the checkout on every node that has its own, on all nodes at the same time.

    `extra` has additional local folders, each with its place below the node's checkout. Returns the
    first node of each folder that was written.

    Raises:
        MusterError: a folder contains other files, so nothing was sent to any node; or rsync
            failed. One line for each such node.
    """
    apart = [node for node in nodes if not node.shared]
    if not apart:
        return []
    transport = openssh.transport([node.spec for node in apart], config)
    with Survey(transport) as survey:
        firsts = _claimed(apart, survey)
        calls = [partial(_send, apart[index], config, extra or {}) for index in firsts]
        fail([error for error in _in_parallel(calls) if error])
    return [apart[index] for index in firsts]


def _in_parallel(
    copies: Sequence[Callable[[], str | None]], meanwhile: Callable[[], None] = lambda: None
) -> list[str | None]:
    """Run all copies at the same time; return the error of each, or None.

    `meanwhile` is called repeatedly until all copies have ended. If it raises an exception, or a
    signal arrives, the programs of all copies are terminated.
    """
    before = process_tree.children()
    with ThreadPoolExecutor(openssh.AT_ONCE, SENDING) as pool:
        try:
            sent = [pool.submit(copy) for copy in copies]
            # Python handles a signal when the main thread runs, and a signal that arrives just as
            # this thread begins to wait does not wake it. So it never waits for long.
            while wait(sent, SSH_TRANSFER_TICK_S).not_done:
                meanwhile()
        except BaseException:  # otherwise the pool would wait until everything is sent
            kwargs = {"cancel_futures": True}
            threading.Thread(target=pool.shutdown, kwargs=kwargs, name=SENDING).start()
            # the pool has no record of a thread whose start the signal interrupted
            while any(thread.name.startswith(SENDING) for thread in threading.enumerate()):
                process_tree.send_sigterm([*(process_tree.children() - before)])
                time.sleep(SSH_TRANSFER_TICK_S)
            raise
    return [copy.result() for copy in sent]


class _CopyFailed(Exception):
    """The data cannot be sent to a node, so the other copies are ended."""


def send_data(
    sending: Sending, nodes: Sequence[NodeFacts], config: SshConfig, *, quiet: bool = False
) -> dict[NodeSpec, str]:
    """Put the data of --send on every node; return the place on each node.

    Raises:
        MusterError: some nodes cannot get the data; one line for each.
    """
    from launch.nodes import sending as data_sending  # imported here, since few runs send data

    def copy(places: Mapping[int, str], keep: Callable[[], None]) -> Mapping[int, str]:
        errors: dict[int, str] = {}

        def send(index: int) -> str | None:
            error = _send_data(sending.source, nodes[index], places[index], config)
            if error:
                errors[index] = error
            return error

        def meanwhile() -> None:
            if errors:
                raise _CopyFailed(dict(errors))
            keep()

        try:
            _in_parallel([partial(send, index) for index in places], meanwhile)
        except _CopyFailed as failed:
            return dict(failed.args[0])  # without errors of copies that were ended
        return errors

    names = [node.name for node in nodes]
    transport = openssh.transport([node.spec for node in nodes], config)
    places = data_sending.copy_data(sending, names, transport, copy, quiet=quiet)
    return {node.spec: place for node, place in zip(nodes, places, strict=True)}


def _send_data(source: str, node: NodeFacts, place: str, config: SshConfig) -> str | None:
    """Copy the data into a folder beside its place on a node; return the error, or None."""
    client = openssh.client(node.spec, config)
    target = f"{_rsync_host(node.spec)}:{node_data.data_folder(place)}/"
    options = ["--no-compress", *node_data.rsync_options(place)]
    done = openssh.rsync(client, options, f"{source}/", target)
    if not done.returncode:
        return None
    return openssh.rsync_problem(done.stderr) or node_data.rsync_error(done.returncode, done.stderr)


def make_environments(
    nodes: Sequence[NodeFacts], config: SshConfig, packages: Sequence[str] = ()
) -> None:
    """Update the environment of every node; nodes that share a folder share its environment.

    With `packages`, only these are installed, instead of everything that the trainer and reports
    need. An installation that nodes see already has its environment.

    Raises:
        MusterError: one line for every node on which this failed.
    """
    if own_disk := [node.name for node in nodes if not node.shared]:
        print(f"sending the code: {listed(own_disk)}", file=sys.stderr, flush=True)
    apart = send_checkout(nodes, config)
    shared = [] if IS_INSTALLED else [node for node in nodes if node.shared]
    owners = [*shared[:1], *apart]
    console.start_status(f"installing packages on {listed([node.name for node in owners])}")
    with ThreadPoolExecutor(openssh.AT_ONCE) as pool:
        errors = pool.map(lambda node: _make_environment(node, config, packages), owners)
        fail([error for error in errors if error])


def _make_environment(node: NodeFacts, config: SshConfig, packages: Sequence[str]) -> str | None:
    """Run the script on a node, and print its messages; return the error, or None."""
    words = ["bash", "-s", "--", node.repository, os.environ.get("TORCH_INDEX", ""), *packages]
    argv = openssh.command(node.spec, config, words)
    with (
        SCRIPT.open("rb") as script,
        subprocess.Popen(
            argv, stdin=script, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process,
    ):
        assert process.stderr is not None
        limit = threading.Timer(SSH_SETUP_S, process.kill)
        limit.start()
        error_text = ""
        try:
            for line in process.stderr:
                text = printable(line.decode(errors="replace").rstrip())
                error_text += f"{text}\n"
                print(_with_node_name(node, text), file=sys.stderr, flush=True)
        finally:
            limit.cancel()
    if process.returncode == -signal.SIGKILL:
        return f"{node.name}: installing packages took longer than {SSH_SETUP_S / 60:.0f} min"
    if process.returncode == openssh.NOT_CONNECTED:
        return openssh.explain(node.spec, error_text)
    return _with_node_name(node, last_line(error_text)) if process.returncode else None


def _with_node_name(node: NodeFacts, line: str) -> str:
    return line if line.startswith(node.name) else f"{node.name}: {line}"


def _claimed(nodes: Sequence[NodeFacts], survey: Survey) -> list[int]:
    """Claim the folder of each node, and return the first node of each folder.

    Raises:
        MusterError: a node did not answer, cannot write into its folder, or has files there that
            Muster did not send; one line for each such node.
    """
    folders = {str(index): node.repository for index, node in enumerate(nodes)}
    tokens = {index: f"-{secrets.token_hex(8)}" for index in folders}
    answers = survey.ask(node_facts.claim, folders=folders, tokens=tokens)
    problems = survey.silent(answers)
    problems |= {
        index: _objection(nodes[index], answer.value)
        for index, answer in answers.items()
        if answer.value.failed or answer.value.foreign
    }
    fail([problems[index] for index in sorted(problems)])
    claims = survey.ask(node_facts.claimed_by, folders=folders, tokens=tokens)
    return [
        index
        for index in range(len(nodes))
        if index not in claims or min(map(int, claims[index].value), default=index) == index
    ]


def _objection(node: NodeFacts, claim: Claim) -> str:
    """Why the code is not sent into a node's folder, and what to do."""
    folder = node.repository
    if claim.failed:
        return f"{node.name}: cannot write into {folder}: {claim.failed}"
    names = claim.foreign
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    mark = shlex.join(["touch", f"{folder}/{node_facts.MARKER}"])
    return (
        f"{node.name}: {folder} contains {', '.join(names[:LISTED])}{more}, which Muster did not "
        "put there; sending the code would overwrite and delete files"
        "\ntip: choose an empty or a new folder with --remote-dir, or, if all of it may be deleted "
        f"(a copy from an earlier version): {openssh.login_command(node.spec)} {mark}"
    )


def _send(node: NodeFacts, config: SshConfig, extra: Mapping[Path, str]) -> str | None:
    """Copy the files; return the error, or None."""
    place = f"{_rsync_host(node.spec)}:{node.repository}"
    copies: list[tuple[Sequence[str], Path, str]] = [(RULES, CHECKOUT, place)]
    copies += [([], folder, f"{place}/{below}") for folder, below in extra.items()]
    client = openssh.client(node.spec, config)
    for options, source, target in copies:
        try:
            done = openssh.rsync(
                client, options, f"{source}/", f"{target}/", timeout_s=SSH_TRANSFER_S
            )
        except subprocess.TimeoutExpired:
            return f"{node.name}: sending the code took longer than {SSH_TRANSFER_S:.0f} s"
        error_text = done.stderr
        if done.returncode and (problem := openssh.rsync_problem(error_text)):
            return f"{node.name}: {problem}"
        if done.returncode:
            first = error_text.strip().partition("\n")[0]
            return f"{node.name}: sending the code failed: {first or 'no message'}"
    return None


def _rsync_host(node: NodeSpec) -> str:
    return f"[{node.host}]" if ":" in node.host else node.host


def fail(problems: Sequence[str]) -> None:
    """Stop if there are any problems.

    Raises:
        MusterError: a line for each.
    """
    if problems:
        raise MusterError(printable("\n".join(problems)))
