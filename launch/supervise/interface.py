"""Which interface of this machine gradients take, by name, since gloo and nccl ask for one."""

import ipaddress
import socket

from configs.errors import MusterError


def name_of(address: str, network: str | None, node: str) -> str | None:
    """The interface that has `address`; None if none of them says so.

    Raises:
        MusterError: `address` is not in the `network` that was asked for.
    """
    own = addresses()
    if network is not None and ipaddress.ip_address(address) not in ipaddress.ip_network(network):
        here = ", ".join(f"{one} on {name}" for one, name in own.items())
        raise MusterError(
            f"{node} reaches node 0 from {address}, which is not in --network {network}; "
            f"it has {here}"
        )
    return own.get(address)


def addresses() -> dict[str, str]:
    """The IPv4 addresses of this machine, each with its interface's name."""
    import psutil  # here, since --help and --dry-run do not need it

    return {
        one.address: name
        for name, several in psutil.net_if_addrs().items()
        for one in several
        if one.family == socket.AF_INET
    }


def own_address_in(network: str, node: str) -> str:
    """This machine's address in `network`.

    Raises:
        MusterError: it has none there; the message lists those it has.
    """
    wanted = ipaddress.ip_network(network)
    found = addresses()
    for address in found:
        if ipaddress.ip_address(address) in wanted:
            return address
    here = ", ".join(f"{one} on {name}" for one, name in found.items())
    raise MusterError(f"{node} has no address in --network {network}; it has {here}")
