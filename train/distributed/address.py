"""Bind rank 0's address, and choose the interface by which this worker reaches it."""

import ctypes
import errno
import fcntl
import ipaddress
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from muster.errors import MusterError

from .world import World

ASK_ADDRESSES, ROOM_BYTES = 0x8912, 1 << 16  # SIOCGIFCONF, see netdevice(7)
IPV6 = Path("/proc/net/if_inet6")
MOST_WORDS = 80  # characters of a command line


def bind_own_address(world: World) -> socket.socket | None:
    """A socket that is bound to --master-ip, at which rank 0's store can listen.

    None if --master-ip is a name: other machines may resolve it to another address, so the store
    has to listen at all addresses of this machine.

    Raises:
        MusterError: it is in use, does not resolve, or is not an address of this machine, whose
            addresses the message then lists.
    """
    address = f"{world.master_addr}:{world.master_port}"
    try:
        family, endpoint = _resolved(world)
        probe = socket.socket(family)
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(endpoint)
        except OSError:
            probe.close()
            raise
    except socket.gaierror:
        raise _unresolved(world) from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise MusterError(
                f"{address} is in use on {world.host}{_listener(world.master_port)}, so rank 0 "
                f"(pid {os.getpid()}) cannot use it"
                "\ntip: if the other process is also rank 0, give each worker its own rank; "
                "otherwise choose another --master-port, the same on every node"
            ) from None
        addresses = sorted(own_address for _, own_address in interfaces())
        raise MusterError(
            f"rank 0 runs on {world.host}, which does not have the address --master-ip "
            f"{world.master_addr} ({error.strerror})"
            f"\ntip: use one of its addresses: {', '.join(addresses)}"
        ) from None
    if _is_numeric(world.master_addr) or world.master_addr == "localhost":
        return probe
    probe.close()
    return None


def _listener(port: int) -> str:
    """` by pid 812 (python train.py)`: who listens at a port here; "" if it is not known."""
    try:
        import psutil

        sockets = psutil.net_connections("tcp")
        listening = (
            connection
            for connection in sockets
            if connection.status == "LISTEN" and port in connection.laddr
        )
        pid = next(connection.pid for connection in listening if connection.pid is not None)
        words = " ".join(psutil.Process(pid).cmdline())
    except Exception:  # noqa: BLE001 (no psutil, another user's process, or one that has ended)
        return ""
    return f" by pid {pid} ({words[:MOST_WORDS]})"


def _is_numeric(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def wait_for_address(world: World, timeout_s: float) -> None:
    """Wait until rank 0 listens at --master-ip.

    Raises:
        MusterError: it does not resolve, or nothing listens there after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection((world.master_addr, world.master_port), timeout=5):
                return
        except socket.gaierror:
            raise _unresolved(world) from None
        except OSError as error:
            if time.monotonic() > deadline:
                why = (error.strerror or str(error)).lower()
                raise MusterError(
                    f"rank {world.rank} on {world.host} could not reach rank 0 at "
                    f"{world.master_addr}:{world.master_port} for {timeout_s:.0f} s ({why})"
                    "\ntip: check that rank 0 is running, that the address and port are the "
                    "same on every node, and that no firewall is in between"
                ) from None
        time.sleep(0.1)


def _resolved(world: World) -> tuple[int, Any]:
    """The family of rank 0's address, and the address."""
    address = world.master_addr, world.master_port
    family, *_, endpoint = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    return family, endpoint


def _unresolved(world: World) -> MusterError:
    return MusterError(
        f"--master-ip {world.master_addr}: host name not found on {world.host}"
        "\ntip: use a numeric address such as 10.10.1.1"
    )


def choose_interface(world: World) -> None:
    """Make gloo and nccl use the interface that leads to rank 0, unless the user chose one.

    By default gloo uses the address to which the hostname resolves. That may be 127.0.1.1, or a
    control network that must not carry gradients.
    """
    try:
        family, endpoint = _resolved(world)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(endpoint)  # sends nothing
            own_address = probe.getsockname()[0]
    except OSError:
        return
    for name, address in interfaces():
        if address == own_address:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            # without the sign before it, nccl would also match eth10 for eth1
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
            if family == socket.AF_INET6:
                os.environ.setdefault("NCCL_SOCKET_FAMILY", "AF_INET6")


def interfaces() -> list[tuple[str, str]]:
    """Each address of this machine, with the name of its interface; IPv4 comes first.

    On Linux the kernel is asked, since a program that calls `muster.init` may not have psutil.
    """
    if sys.platform != "linux":
        import psutil

        addresses = [
            (name, entry) for name, entries in psutil.net_if_addrs().items() for entry in entries
        ]
        kinds = (socket.AF_INET, socket.AF_INET6)
        return [(name, entry.address) for name, entry in addresses if entry.family in kinds]
    buffer = ctypes.create_string_buffer(ROOM_BYTES)
    request = struct.pack("iP", ROOM_BYTES, ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as kernel:
        filled, _ = struct.unpack("iP", fcntl.ioctl(kernel, ASK_ADDRESSES, request))
    width = 24 + 2 * struct.calcsize("P")  # of a struct ifreq: 40 bytes with pointers of 8
    rows = [buffer.raw[start : start + width] for start in range(0, filled, width)]
    # a second address of eth0 may be called eth0:1
    names = [row[:16].partition(b"\0")[0].decode().partition(":")[0] for row in rows]
    by_name = [(name, socket.inet_ntoa(row[20:24])) for name, row in zip(names, rows, strict=True)]
    if IPV6.exists():
        lines = [line.split() for line in IPV6.read_text(encoding="ascii").splitlines()]
        by_name += [
            (name, str(ipaddress.IPv6Address(int(digits, 16)))) for digits, *_, name in lines
        ]
    return by_name
