"""A node's side of the checks: it does what each line asks, and says what came of it.

Its text is sent to `python3` there, before anything of ours is; so it needs the standard library
of Python 3.6 alone. All nodes are told the same, for srun gives its input to all tasks alike;
an answer names its node and comes in short parts, for srun would mix long lines of two tasks.
"""

import json
import os
import socket
import sys
import threading
import time

MARK = "muster:"
PART = 400  # srun passes on 1024 bytes at a time
# Enough to fill several packets of any size: where small ones pass alone, a link has a wrong MTU.
LOAD = b"x" * 200_000
GOT_IT = b"!"


def describe(asked):  # type: ignore[no-untyped-def]
    """What probe.py, whose text is given, finds out here."""
    probe: dict = {"__name__": "probe"}  # type: ignore[type-arg]
    exec(compile(asked["source"], "probe", "exec"), probe)
    return {"probe": probe["describe"](asked["request"])}


def tell_time(asked):  # type: ignore[no-untyped-def]
    return {"time_unix_s": time.time()}


def listen(asked, servers=[]):  # type: ignore[no-untyped-def]  # noqa: B006
    """Take connections at this node's address; and which of the ports asked for are in use."""
    address = asked["addresses"][str(own_index())]
    server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    servers.append(server)  # else it would be closed at once
    server.bind((address, 0))
    server.listen(1024)
    threading.Thread(target=serve, args=(server,), daemon=True).start()
    busy = [port for port in asked["ports"] if not is_free(port)]
    return {"port": server.getsockname()[1], "busy_ports": busy, "links": links()}


def serve(server):  # type: ignore[no-untyped-def]
    while True:
        connection, _ = server.accept()
        threading.Thread(target=swallow, args=(connection,), daemon=True).start()


def swallow(connection):  # type: ignore[no-untyped-def]
    with connection:
        connection.settimeout(30)
        left = len(LOAD)
        try:
            while left > 0:
                got = connection.recv(65536)
                if not got:
                    return
                left -= len(got)
            connection.sendall(GOT_IT)
        except OSError:
            return


def connect(asked):  # type: ignore[no-untyped-def]
    """Send something to every other node; "" or what went wrong, and how long connecting took."""
    found: dict = {}  # type: ignore[type-arg]
    threads = [
        threading.Thread(target=visit, args=(index, where, asked["patience_s"], found), daemon=True)
        for index, where in asked["servers"].items()
        if int(index) != own_index()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"reached": found}


def visit(index, where, timeout_s, found):  # type: ignore[no-untyped-def]
    began = time.time()
    try:
        connection = socket.create_connection(tuple(where), timeout=timeout_s)
    except OSError as error:
        found[index] = [reason(error), None]
        return
    took = time.time() - began
    with connection:
        try:
            connection.sendall(LOAD)
            answered = connection.recv(1) == GOT_IT
        except OSError:
            answered = False
    found[index] = ["" if answered else "stalls", took]


def reason(error):  # type: ignore[no-untyped-def]
    if isinstance(error, socket.timeout):
        return "no answer"
    return (error.strerror or str(error)).lower()


def is_free(port):  # type: ignore[no-untyped-def]
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
        except OSError:
            return False
    return True


def links():  # type: ignore[no-untyped-def]
    """Whether each interface is up, as the kernel says: up, down, or unknown for a tunnel."""
    found = {}
    for _, name in socket.if_nameindex():
        try:
            with open("/sys/class/net/%s/operstate" % name) as state:
                found[name] = state.read().strip()
        except OSError:
            continue
    return found


def own_index():  # type: ignore[no-untyped-def]
    """A number, or the name of the variable that holds it."""
    return int(os.environ.get(sys.argv[1], sys.argv[1]))


def say(answer):  # type: ignore[no-untyped-def]
    text = json.dumps(answer)
    for at in range(0, len(text), PART):
        part = {"node": own_index(), "part": text[at : at + PART], "more": at + PART < len(text)}
        sys.stdout.write(MARK + json.dumps(part) + "\n")
    sys.stdout.flush()


DO = {"describe": describe, "time": tell_time, "listen": listen, "connect": connect}


def main():  # type: ignore[no-untyped-def]
    for line in iter(sys.stdin.buffer.readline, b""):
        text = line.decode()
        if text.startswith(MARK):
            asked = json.loads(text[len(MARK) :])
            try:
                answer = DO[asked["do"]](asked)
            except (OSError, ValueError, LookupError) as error:
                answer = {"failed": str(error)}
            answer["to"] = asked["number"]
            say(answer)


if __name__ == "__main__":
    main()
