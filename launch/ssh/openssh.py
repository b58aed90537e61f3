"""Run commands on other machines through OpenSSH itself, so that the user's settings apply.

How it works: a command is `python connect.py TURN ssh OPTIONS -T -- HOST WORDS`. OPTIONS override
~/.ssh/config, which decides everything else: names, users, keys, agents and jump hosts. `ssh -G`
reports that file's settings once for each host. Some settings are overridden, since they would
change what ssh does with our command. StrictHostKeyChecking is `yes`, or `accept-new` if the user
has set that, but never `no`, so host keys are always checked. The user's ControlPath is not
changed. ssh never prompts the user. sshd passes WORDS to a shell, so they are one string that is
quoted word by word.
"""

import functools
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from configs.settings.remote import SshConfig
from launch.nodes.node_data import NO_RSYNC
from launch.nodes.survey import (
    CONNECTION_BROKE,
    LOAD,
    LOST_INPUT,
    ONLY_BY_HAND,
    START_UP,
    Transport,
    last_line,
)
from launch.spec import NodeSpec
from launch.ssh import connect
from muster.printable import signal_name
from muster.terminal import TIP
from muster.tool_environment import environment_for, require

AT_ONCE = 16
NOT_CONNECTED = 255  # ssh's own exit code if it cannot connect
# For every connection: set timeouts, and forward nothing.
COMMON_OPTIONS = {
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",  # a broken link is noticed after 15 s
    "ServerAliveCountMax": "3",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "PermitLocalCommand": "no",
}
BATCH_OPTIONS = {
    **COMMON_OPTIONS,
    "BatchMode": "yes",  # a question that nobody sees would look like a hang
    # A master connection that the user has opened is used. No new one is opened: it would end with
    # the run, and so would the user's other logins through it.
    "ControlMaster": "no",
    "ControlPersist": "no",
}
# Settings for interactive logins that would replace our command, its input or its messages, each
# with the value that has no such effect. Only settings in the user's file are overridden, since an
# older ssh rejects settings that are new to it.
INTERACTIVE_SETTINGS = {
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "SessionType": "default",
    "StdinNull": "no",
    "ForkAfterAuthentication": "no",
    "Tunnel": "no",
}
LOG_LEVELS = ("ERROR", "INFO")  # at these levels ssh prints only the reason for a failure
KEY_HINT = "check its fingerprint, then add it: ssh-keyscan {port}{host} >> ~/.ssh/known_hosts"
CHANGED_KEY = (
    "its host key has changed\ntip: if the machine was reinstalled, remove the old key with "
    "ssh-keygen -R {host}; if not, this may be an attack"
)
CLOSED_AT_LOGIN = (
    "an ssh server, or a jump host, closed the connection during login\ntip: increase "
    "MaxStartups in its sshd configuration"
)
# The messages of bash, zsh, fish and tcsh.
RSYNC_NOT_FOUND = re.compile(
    r"rsync: (?:command )?not found|command not found: rsync|Unknown command:? '?rsync",
    re.IGNORECASE,
)
# Phrases in OpenSSH's messages, what they mean, and what to do.
EXPLANATIONS = (
    (
        "Could not resolve hostname",
        "host name not found\ntip: check the spelling, or give the node's address",
    ),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", CHANGED_KEY),
    ("Host key verification failed", f"unknown host key{TIP}{KEY_HINT}"),
    (
        "Permission denied",
        "permission denied\ntip: load your key with ssh-add, or give the user name",
    ),
    ("_exchange_identification", CLOSED_AT_LOGIN),
    (
        "Connection refused",
        "connection refused\ntip: check that it runs an ssh server, and that the port is right",
    ),
    (
        "Connection timed out",
        "connection timed out\ntip: check that it is up, and that no firewall blocks it",
    ),
    (
        "No route to host",
        "no route to host\ntip: check that it is up, and that its address is right",
    ),
    (
        "Network is unreachable",
        "network is unreachable\ntip: check that this machine is on a network that reaches it",
    ),
)  # fmt: skip
# Phrases in OpenSSH's messages about a connection that was open before.
BREAKS = ("closed by remote host", "Connection reset by", "Broken pipe", "not responding")
NO_LOGIN = "This account is currently not available"  # printed by nologin, the account's shell


def transport(nodes: Sequence[NodeSpec], config: SshConfig) -> Transport:
    """The transport that starts a probe on each node, through one connection to each."""

    def start(index: int) -> list[str]:
        return command(nodes[index], config, ["python3", "-c", LOAD, str(index)], index)

    def explain_end(index: int, code: int, error_text: str) -> str:
        name = nodes[index].name
        if LOST_INPUT in error_text:
            return f"{name}: {START_UP} reads the input that is meant for Muster{TIP}{ONLY_BY_HAND}"
        if code == NOT_CONNECTED:
            return explain(nodes[index], error_text)
        if code < 0 or code - 128 in set(signal.Signals):  # see connect.py
            killed = signal_name(abs(code) % 128)
            return f"{name}: {CONNECTION_BROKE}: ssh, or the Python there, was killed by {killed}"
        if NO_LOGIN in error_text:
            return (
                f"{name}: permission denied: this account cannot log in\ntip: use another user name"
            )
        if "python3" in error_text and "not found" in error_text:
            return (
                f"{name}: python3 not found\n"
                "tip: on that node, run: sudo apt-get install python3 python3-venv"
            )
        return f"{name}: its Python could not examine the node: {last_line(error_text)}"

    with ThreadPoolExecutor(AT_ONCE) as pool:  # each node needs one `ssh -G`
        commands = list(pool.map(start, range(len(nodes))))
    return Transport([node.name for node in nodes], commands, explain_end)


def command(node: NodeSpec, config: SshConfig, words: Sequence[str], turn: int = 0) -> list[str]:
    """The local command that runs `words` on `node`; `turn` other logins begin before it."""
    return [*client(node, config, turn), "-T", "--", node.host, shlex.join(words)]


def client(node: NodeSpec, config: SshConfig, turn: int = 0) -> list[str]:
    """The ssh command with all its options, but without the host: rsync needs only this part.

    The user's own ControlPath is used, since an open connection needs no second factor.
    """
    file = ["-F", str(config.ssh_config)] if config.ssh_config is not None else []
    port = ["-p", str(node.port)] if node.port else []
    user = ["-l", node.user] if node.user else []
    options = {**BATCH_OPTIONS, **host_options(node.host, *file, *user, *port, unknown="yes")}
    with_retries = [sys.executable, "-IS", connect.__file__, str(turn)]
    return [*with_retries, "ssh", *file, *option_words(options), *user, *port]


def option_words(options: Mapping[str, str]) -> list[str]:
    """Settings from an ssh configuration file, as arguments for ssh."""
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def login_command(node: NodeSpec) -> str:
    """The command by which a user logs in, without a configuration file."""
    user = f"{node.user}@" if node.user else ""
    return f"ssh {f'-p {node.port} ' if node.port else ''}{user}{node.host}"


def rsync(
    client: Sequence[str],
    options: Sequence[str],
    source: str,
    target: str,
    *,
    stdin: bytes = b"",
    timeout_s: float | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Copy through ssh; no other user may write into the copied files and folders.

    Raises:
        UsageError: this machine has no rsync.
        subprocess.TimeoutExpired: the copy took longer than `timeout_s`.
    """
    require("rsync", "copying to other machines")
    argv = ["rsync", "--archive", "--compress", "--protect-args", "--chmod=go-w"]
    done = subprocess.run(
        [*argv, "-e", shlex.join(client), *options, "--", source, target],
        env=environment_for("rsync"),
        input=stdin,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    texts = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, *texts)


def explain(node: NodeSpec, error_text: str) -> str:
    """A line that says why ssh could not connect, and what to do; `error_text` is ssh's stderr."""
    for words, template in EXPLANATIONS:
        if words in error_text:
            port = f"-p {node.port} " if node.port else ""
            is_slots = words == "Connection refused" and node.port is not None and node.port < 1024
            more = f"; for {node.port} workers write slots={node.port}" if is_slots else ""
            text = template.format(name=node.name, host=node.host, port=port)
            return f"{node.name}: {text}{more}"
    how = CONNECTION_BROKE if any(words in error_text for words in BREAKS) else "ssh failed"
    return f"{node.name}: {how}: {last_line(error_text).rstrip('.')}"


def rsync_problem(error_text: str) -> str | None:
    """Why rsync on another machine did not answer, and what to do; None for any other failure."""
    if RSYNC_NOT_FOUND.search(error_text):
        return NO_RSYNC
    if "is your shell clean?" in error_text:
        return f"{START_UP} prints text, which rsync cannot handle{TIP}{ONLY_BY_HAND}"
    return None


@functools.cache
def host_options(host: str, *options: str, unknown: str) -> dict[str, str]:
    """The options that depend on the user's settings for a host.

    If a host key is unknown, ssh refuses to connect (`unknown` is "yes") or asks the user ("ask").
    It accepts the key without asking only if the user's own configuration says accept-new. The
    user's settings for interactive logins are overridden.

    Raises:
        UsageError: this machine has no ssh.
    """
    require("ssh", "logging in to other machines")
    result = subprocess.run(
        ["ssh", *options, "-G", "--", host],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    settings = dict(line.lower().partition(" ")[::2] for line in result.stdout.splitlines())
    accepts_new = settings.get("stricthostkeychecking") == "accept-new"
    overriding = {"StrictHostKeyChecking": "accept-new" if accepts_new else unknown}
    overriding |= {
        name: value
        for name, value in INTERACTIVE_SETTINGS.items()
        if settings.get(name.lower(), value) not in (value, "false", "auto")
    }
    if settings.get("loglevel", "info").upper() not in LOG_LEVELS:
        overriding["LogLevel"] = "INFO"
    return overriding
