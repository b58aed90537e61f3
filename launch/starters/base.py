"""What `--workers` chooses: how the workers of a node are started."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from configs import plugins
from launch.spec import DECIDED, Facts, LaunchSpec, NodeCommand, Program


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


def command(
    spec: LaunchSpec,
    facts: Facts,
    node_rank: int,
    words: Sequence[str],
    env: Mapping[str, str] | None = None,
) -> NodeCommand:
    """A process of a node: what its Python is given, where the program starts."""
    node, program = facts.nodes[node_rank], spec.program
    argv = (program.python or node.python, *words)
    env = {**spec.env, "PYTHONUNBUFFERED": "1", **(env or {})}
    return NodeCommand(node.spec.host, node_rank, argv, env, program.cwd or node.repository)


def variables(spec: LaunchSpec, facts: Facts, node_rank: int) -> dict[str, str]:
    """What torchrun tells all workers of a node, where it does not start them."""
    return {
        "WORLD_SIZE": str(facts.world_size),
        "LOCAL_WORLD_SIZE": str(facts.counts[node_rank]),
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": str(len(facts.nodes)),
        "MASTER_ADDR": facts.master_addr,
        "MASTER_PORT": str(facts.master_port or DECIDED),
        # what torchrun sets beside these; Lightning, for one, knows it by the first
        "TORCHELASTIC_RUN_ID": spec.run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(facts.world_size),
    }


def starter_of(name: str) -> Starter:
    """What `--workers name` chooses."""
    found: Starter = plugins.load("launch.starters", name)
    return found


def commands_of(spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
    """The processes of every node; pure."""
    of_node = starter_of(spec.workers).commands
    return [one for node_rank in range(len(facts.nodes)) for one in of_node(spec, facts, node_rank)]
