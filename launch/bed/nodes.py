"""Each node has a number, and everything else about it follows: names, addresses, cores."""

from collections.abc import Sequence
from dataclasses import dataclass

from launch.bed.options import Options

EXPERIMENT_NET, CONTROL_NET = "10.10.1", "192.168.77"
# The box itself, on each of the two networks.
BOX = 254


@dataclass(frozen=True)
class Node:
    """One host of the bed."""

    number: int
    address: str  # on the experiment network, where training traffic goes
    control: str | None  # on the control network, if the bed has one
    cores: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def netns(self) -> str:
        return f"muster-{self.name}"

    @property
    def known_as(self) -> str:
        """The address that the node's name stands for."""
        return self.control or self.address


def of(options: Options, cores: Sequence[int]) -> list[Node]:
    """The nodes of a bed on a box whose processes may use `cores`: each node gets its share."""
    share = max(1, len(cores) // options.nodes)
    return [
        Node(
            number=number,
            address=f"{EXPERIMENT_NET}.{number + 1}",
            control=f"{CONTROL_NET}.{number + 1}" if options.control_network else None,
            cores=tuple(cores[(number * share + i) % len(cores)] for i in range(share)),
        )
        for number in range(options.nodes)
    ]
