"""What `--workers` chooses: how the workers of a node are started."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from configs import plugins
from launch.spec import Facts, LaunchSpec, NodeCommand, Program


class Starter(ABC):
    """Implemented by each file of launch/starters/, whose `build` is one."""

    # Whether it can count a node's GPUs there (`--nproc-per-node gpu`).
    counts_gpus = False
    # The package that must be in the Python of the workers; None: the standard library is enough.
    needs: str | None = None

    def problems(self, program: Program) -> Iterator[str]:
        """Why it cannot start such a program, a line each; as far as that is known beforehand."""
        yield from ()

    @abstractmethod
    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        """The processes of one node; pure.

        Raises:
            UsageError: it cannot start such workers.
        """


def starter_of(name: str) -> Starter:
    """What `--workers name` chooses."""
    found: Starter = plugins.load("launch.starters", name)
    return found


def commands_of(spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
    """The processes of every node; pure."""
    of_node = starter_of(spec.workers).commands
    return [
        command
        for node_rank in range(len(facts.nodes))
        for command in of_node(spec, facts, node_rank)
    ]
