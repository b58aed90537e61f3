"""Find facts about this machine without torch: free ports, network interfaces and GPUs."""

import ipaddress
import itertools
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from muster.errors import MusterError

# The variables by which gloo and nccl choose network cards.
GLOO = "GLOO_SOCKET_IFNAME"
NCCL = "NCCL_SOCKET_IFNAME"
# Below the range from which the kernel takes ports for outgoing connections.
DEFAULT_PORTS = range(20_000, 32_000)


def ports_of(ports: Sequence[int] | None) -> range:
    """The range from the first to the last of `ports`; `DEFAULT_PORTS` if `ports` is None."""
    return range(ports[0], ports[1] + 1) if ports else DEFAULT_PORTS


def free_port(ports: range = DEFAULT_PORTS) -> int:
    """A free port among `ports`.

    Raises:
        MusterError: no port is free.
    """
    # Two simultaneous launchers should not try the same ports in the same order.
    first = os.getpid() * 7919
    for offset in range(len(ports)):
        port = ports[(first + offset) % len(ports)]
        if is_free(port):
            return port
    raise MusterError(
        f"no free port between {ports[0]} and {ports[-1]}"
        "\ntip: give --master-port, or another --port-range"
    )


def is_free(port: int) -> bool:
    """Whether a store like torch's could listen on `port` at all addresses of this machine."""
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def interface_of(address: str, network: str | None, node: str) -> str | None:
    """The interface with `address`; None if no interface has it.

    Raises:
        MusterError: `address` is not in the requested `network`.
    """
    own = addresses()
    if network is not None and ipaddress.ip_address(address) not in ipaddress.ip_network(network):
        here = ", ".join(f"{address} on {name}" for address, name in own.items())
        raise MusterError(
            f"{node} reaches node 0 from {address}, which is not in --network {network}; "
            f"it has {here}"
        )
    return own.get(address)


def interface_variables(interface: str | None, address: str) -> dict[str, str]:
    """The variables that make gloo and nccl use the interface, and nccl use IPv6 if needed."""
    if interface is None:
        return {}
    # Without the "=" nccl matches prefixes: eth1 would also match eth10; see
    # https://github.com/NVIDIA/nccl/issues/177.
    variables = {GLOO: interface, NCCL: f"={interface}"}
    return {**variables, "NCCL_SOCKET_FAMILY": "AF_INET6"} if ":" in address else variables


def absent_interface(env: Mapping[str, str], own: Sequence[str]) -> str | None:
    """The variable that would make workers look for a card that this node does not have, or None.

    `own`: the names of the node's cards. Only the variable for the backend that this node's workers
    use is examined.
    """
    variable = NCCL if gpu_count() else GLOO
    value = env.get(variable, "")
    return variable if value and _names_no_card(variable, value, own) else None


def _names_no_card(variable: str, value: str, own: Sequence[str]) -> bool:
    """Whether a variable's value selects none of the cards `own`.

    gloo takes names, separated by commas; each of them must exist. nccl takes the beginnings of
    names, or `=NAME` for complete names; `^` precedes those that it must not use.
    """
    names = value.lstrip("^=").split(",")
    if variable == GLOO:
        return not all(name in own for name in value.removesuffix(",").split(","))
    if "=" in value[:2]:
        return not ({*own} - {*names} if value.startswith("^") else {*own} & {*names})
    begins = [name for name in own if name.startswith(tuple(names))]
    return len(begins) == len(own) if value.startswith("^") else not begins


def card_names(*, reach_others: bool = False) -> list[str]:
    """The names of this machine's network cards, and labels of addresses, such as eth0:1.

    `reach_others`: without cards that have only loopback addresses, such as lo.
    """
    import psutil  # imported here: --help and --dry-run do not need it

    own = psutil.net_if_addrs()
    inet = (socket.AF_INET, socket.AF_INET6)
    local = {
        name
        for name, several in own.items()
        if (addresses := [each.address for each in several if each.family in inet])
        and all(ipaddress.ip_address(address).is_loopback for address in addresses)
    }
    return sorted(own.keys() - local if reach_others else own)


def addresses() -> dict[str, str]:
    """This machine's addresses, without link-local IPv6, and the names of their interfaces."""
    import psutil  # imported here: --help and --dry-run do not need it

    return {
        card_address.address: name
        for name, several in psutil.net_if_addrs().items()
        for card_address in several
        if card_address.family in (socket.AF_INET, socket.AF_INET6)
        and "%" not in card_address.address
    }


def own_address_in(network: str, node: str) -> str:
    """This machine's address in `network`.

    Raises:
        MusterError: it has no address in `network`; the message lists the addresses that it has.
    """
    wanted = ipaddress.ip_network(network)
    own = addresses()
    for address in own:
        if ipaddress.ip_address(address) in wanted:
            return address
    here = ", ".join(f"{address} on {name}" for address, name in own.items())
    raise MusterError(f"{node} has no address in --network {network}; it has {here}")


def gpu_count(root: Path = Path("/")) -> int:
    """The number of GPUs that a worker of this process would see, found without torch.

    If a variable of CUDA or ROCm is set, it decides; Slurm sets one for the GPUs of a step.
    Otherwise these sources are tried until one of them shows a GPU: NVIDIA's device files (in a
    container, the driver shows more GPUs than may be used), NVIDIA's driver, ROCm's driver, and
    WSL2, which has one device for all GPUs.
    """
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        value = os.environ.get(variable)
        if value is not None:
            names = [name.strip() for name in value.split(",")]
            return len(list(itertools.takewhile(lambda name: name not in ("", "-1"), names)))
    files = [path for path in (root / "dev").glob("nvidia*") if path.name[6:].isdigit()]
    drivers = list((root / "proc/driver/nvidia/gpus").glob("*"))
    is_wsl = (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so").exists()
    return len(files) or len(drivers) or _amd_gpu_count(root) or int(is_wsl)


def _amd_gpu_count(root: Path) -> int:
    """The number of GPUs among the nodes of ROCm's driver; a CPU is a node without SIMD units."""
    count = 0
    for path in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        with suppress(OSError):
            lines = path.read_text(encoding="ascii", errors="replace").splitlines()
            count += any(
                line.startswith("simd_count ") and line.split()[1] != "0" for line in lines
            )
    return count
