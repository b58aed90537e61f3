"""Several agents on one machine, simulated nodes that is, share one import.

How it works: one process P (`preload.py --agents`) imports. For each agent it forks a process C,
which forks a template T and then becomes the agent by exec: that keeps its pid, so T is the agent's
child, and so are, below T, the workers which T forks when the agent's own `preload.py` asks for
them at T's socket. All that holds of what an agent starts holds of them. P says nothing, waits for
the agents, and ends with who started it.

The socket has an abstract name, which only this user is answered at. T refuses an environment other
than the one it has imported in: `preload.py` then imports by itself.

This file is loaded by its path. It needs the standard library alone, of Python 3.8 or newer.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import secrets
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

ADDRESS = "MUSTER_PRELOADED"  # where the template of an agent listens
PR_SET_PDEATHSIG = 1
# What differs between agents, or is the agent's own to say, and is read when a program meets.
PER_NODE = (
    "MUSTER_",
    "GLOO_",
    "NCCL_SOCKET_",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    "ACCELERATE_USE_CPU",
    "PYTHONUNBUFFERED",
    "LC_CTYPE",
)
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
BYTES = 8  # of a message's length


def ask(argv: list[str]) -> int | None:
    """Have the template beside this agent start the workers; their exit code.

    None where there is no template, or it was made for another environment.
    """
    address = os.environ.pop(ADDRESS, "")
    if not address:
        return None
    server = socket.socket(socket.AF_UNIX)
    request = {"argv": argv, "env": dict(os.environ), "cwd": str(Path.cwd())}
    body = json.dumps(request).encode()
    descriptors = array.array("i", [1, 2])
    try:
        server.connect("\0" + address)
        head = len(body).to_bytes(BYTES, "big")
        server.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        server.sendall(body)
        if server.recv(1) != b"y":
            sys.stderr.write("note: this node imports by itself: its environment is its own\n")
            return None
    except OSError:
        return None
    wakes, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: None)
    while True:
        ready = select.select([wakes, server.fileno()], (), ())[0]
        if server.fileno() in ready:
            code = server.recv(16)
            return int(code) if code else 128 + signal.SIGKILL  # as the template ended
        server.sendall(os.read(wakes, 1))


def start_agents(templates: bool) -> tuple[socket.socket, list[str]]:
    """Start the agents that stdin lists, and wait for them; returns in a template that was asked.

    {"env": {...}, "agents": [{"argv": [...], "cwd": "...", "descriptors": [0, 1, 2]}, ...]}

    What is returned is the connection, and the command line, of who asked.
    """
    with os.fdopen(os.dup(0), "rb") as stdin:
        asked = json.loads(stdin.read())
    agents, imported_with = asked["agents"], dict(os.environ)
    started = []
    for at, agent in enumerate(agents):
        held = [one for other in agents[at:] for one in other["descriptors"]]
        pid = os.fork()
        if pid == 0:
            return _become(agent, asked["env"], held, imported_with, templates)
        started.append(pid)
        for one in agent["descriptors"]:  # a pipe ends when the agent does
            os.close(one)
    for pid in started:
        os.waitpid(pid, 0)
    os._exit(0)


def _become(
    agent: dict[str, Any],
    env: dict[str, str],
    held: list[int],
    imported_with: dict[str, str],
    templates: bool,
) -> tuple[socket.socket, list[str]]:
    """Leave a template behind, and become the agent; returns in the template, when it is asked."""
    os.setsid()
    if templates:
        address = f"muster-{os.getpid()}-{secrets.token_hex(8)}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0" + address)
        listener.listen(1)
        env = {**env, ADDRESS: address}
        parent = os.getpid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(128 + signal.SIGKILL)
            os.setsid()
            _let_go(held)
            return _wait(listener, imported_with)
    for target, source in enumerate(agent["descriptors"]):
        os.dup2(source, target)
    for one in held:
        os.close(one)
    os.chdir(agent["cwd"])
    os.execvpe(agent["argv"][0], agent["argv"], env)
    raise AssertionError("exec does not return")


def _let_go(held: list[int]) -> None:
    """Of all that is the agent's: a launcher sees by the end of a pipe that an agent is gone."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(nothing, target)
    for one in (*held, nothing):
        os.close(one)


def _wait(
    listener: socket.socket, imported_with: dict[str, str]
) -> tuple[socket.socket, list[str]]:
    """The connection and the command line of who asks, if its environment is the same."""
    while True:
        connection = listener.accept()[0]
        size = struct.calcsize("3i")
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        if struct.unpack("3i", peer)[1] == os.getuid():
            break
        connection.close()
    listener.close()
    room = socket.CMSG_SPACE(2 * array.array("i").itemsize)
    head, ancillary, _, _ = connection.recvmsg(BYTES, room)
    body = b""
    while len(body) < int.from_bytes(head, "big"):
        part = connection.recv(1 << 16)
        if not part:
            os._exit(1)
        body += part
    request = json.loads(body)
    if _shared(request["env"]) != _shared(imported_with):
        os._exit(0)
    connection.sendall(b"y")
    descriptors = array.array("i")
    descriptors.frombytes(ancillary[0][2])
    for target, source in enumerate(descriptors, start=1):
        os.dup2(source, target)
        os.close(source)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    return connection, request["argv"]


def _shared(env: dict[str, str]) -> dict[str, str]:
    """What the import of a library may depend on."""
    return {name: one for name, one in env.items() if not name.startswith(PER_NODE)}
