"""Which interface of this machine gradients take, by name, since gloo and nccl ask for one."""

import ipaddress
import socket

from muster.errors import MusterError


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


def variables(interface: str | None, address: str) -> dict[str, str]:
    """What has gloo and nccl use the interface, and nccl the kind of address that it is to use."""
    if interface is None:
        return {}
    # nccl would take eth10 for eth1, too, without the sign before it.
    found = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return {**found, "NCCL_SOCKET_FAMILY": "AF_INET6"} if ":" in address else found


def addresses() -> dict[str, str]:
    """The addresses of this machine that others may reach, each with its interface's name."""
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
