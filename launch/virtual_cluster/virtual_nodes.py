"""A node's names, addresses and cores follow from its number."""

from collections.abc import Sequence
from dataclasses import dataclass

from launch.virtual_cluster.options import Options

EXPERIMENT_NET, CONTROL_NET = "10.10.1", "192.168.77"
EXPERIMENT_NET_6 = "fd00:10:10:1::"
BOX = 254  # the number of the machine itself, on each of the two networks


@dataclass(frozen=True)
class Node:
    """One host of the testbed."""

    number: int
    address: str  # on the experiment network, where training traffic goes
    control: str | None  # on the control network, if the testbed has one
    cores: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def netns(self) -> str:
        return f"muster-{self.name}"

    @property
    def known_as(self) -> str:
        """The address to which the node's name resolves."""
        return self.control or self.address

    @property
    def slurm_address(self) -> str:
        """The address for Slurm, which would need a setting to use IPv6."""
        return self.known_as if ":" in self.address else self.address


def of(options: Options, cores: Sequence[int]) -> list[Node]:
    """The nodes of a testbed on a box with `cores`: each node gets its share of them."""
    share = max(1, len(cores) // options.nodes)
    net = EXPERIMENT_NET_6 if options.ipv6 else EXPERIMENT_NET + "."
    return [
        Node(
            number=number,
            address=f"{net}{number + 1}",
            control=f"{CONTROL_NET}.{number + 1}" if options.control_network else None,
            cores=tuple(cores[(number * share + i) % len(cores)] for i in range(share)),
        )
        for number in range(options.nodes)
    ]
