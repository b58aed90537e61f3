"""What a node finds out about the network: the time, and which nodes it reaches.

Its text is sent to the node, see `remote_probe`, so it needs the standard library of Python 3.8
alone. Every pair of nodes is tried in two questions: `listen` has all of them take connections, and
only when all have answered does `connect` send to each of the others. Each direction is tried by
itself, as a firewall may close one of them only.
"""

import socket
import threading
import time

# Enough to fill several packets of any size: where small ones pass alone, a link has a wrong MTU.
LOAD = b"x" * 200_000
RECEIVED = b"!"
servers = []  # type: ignore[var-annotated]  # a socket that nothing refers to is closed


def tell_time(asked):  # type: ignore[no-untyped-def]
    return time.time()


def listen(asked):  # type: ignore[no-untyped-def]
    """Take connections at this node's address; returns the port."""
    address = asked["addresses"][asked["node"]]
    server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    servers.append(server)
    server.bind((address, 0))
    server.listen(1024)
    threading.Thread(target=_serve, args=(server,), daemon=True).start()
    return server.getsockname()[1]


def connect(asked):  # type: ignore[no-untyped-def]
    """Send to all other nodes at once; for each what went wrong, or "", and connect time (s)."""
    found: dict = {}  # type: ignore[type-arg]
    threads = [
        threading.Thread(target=_try, args=(node, server, asked["patience_s"], found), daemon=True)
        for node, server in asked["servers"].items()
        if node != asked["node"]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _serve(server):  # type: ignore[no-untyped-def]
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_receive, args=(connection,), daemon=True).start()


def _receive(connection):  # type: ignore[no-untyped-def]
    with connection:
        connection.settimeout(30)
        left = len(LOAD)
        try:
            while left > 0:
                new = connection.recv(65536)
                if not new:
                    return
                left -= len(new)
            connection.sendall(RECEIVED)
        except OSError:
            return


def _try(node, server, timeout_s, found):  # type: ignore[no-untyped-def]
    began = time.monotonic()
    try:
        connection = socket.create_connection(tuple(server), timeout=timeout_s)
    except socket.timeout:
        found[node] = ["no answer", None]
        return
    except OSError as error:
        found[node] = [(error.strerror or str(error)).lower(), None]
        return
    connect_s = time.monotonic() - began
    with connection:
        try:
            connection.sendall(LOAD)
            answered = connection.recv(1) == RECEIVED
        except OSError:
            answered = False
    found[node] = ["" if answered else "stalls", connect_s]
