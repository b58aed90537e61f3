"""A port that is free on this machine, where workers can meet."""

import os
import socket
from collections.abc import Sequence

from muster.errors import MusterError

# Below the range from which the kernel gives ports to outgoing connections.
PORTS = range(20_000, 32_000)


def among(ports: Sequence[int] | None) -> range:
    """All ports from the first of `ports` to the last; `PORTS` where none are given."""
    return range(ports[0], ports[1] + 1) if ports else PORTS


def free_port(start: int | None = None, ports: range = PORTS) -> int:
    """A free port; the search begins at `start`, counted from the first of `ports`.

    Raises:
        MusterError: none is free.
    """
    # Two launchers at the same moment should not try the same ports in the same order.
    first = os.getpid() * 7919 if start is None else start
    for offset in range(len(ports)):
        port = ports[(first + offset) % len(ports)]
        if is_free(port):
            return port
    raise MusterError(
        f"no free port between {ports[0]} and {ports[-1]}; give --master-port, or another "
        "--port-range"
    )


def is_free(port: int) -> bool:
    """Whether a store like torch's could listen on `port` at all addresses of this machine."""
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True
