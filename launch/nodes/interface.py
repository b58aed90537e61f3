"""The interface of this machine that gradients take: gloo and nccl want its name."""

import ipaddress
import socket

from muster.errors import MusterError


def name_of(address: str, network: str | None, node: str) -> str | None:
    """The interface that has `address`; None if no interface shows it.

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


def variables(interface: str | None, address: str) -> dict[str, str]:
    """The variables that make gloo and nccl use the interface, and nccl IPv6 where it has to."""
    if interface is None:
        return {}
    # Without the "=" nccl would match prefixes: eth1 would be eth10 as well.
    found = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return {**found, "NCCL_SOCKET_FAMILY": "AF_INET6"} if ":" in address else found


def addresses() -> dict[str, str]:
    """This machine's addresses that other machines may reach, each with its interface's name."""
    import psutil  # here, since --help and --dry-run do not need it

    return {
        one.address: name
        for name, several in psutil.net_if_addrs().items()
        for one in several
        if one.family in (socket.AF_INET, socket.AF_INET6) and "%" not in one.address
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
