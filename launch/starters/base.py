"""The contract of `--workers`: how the workers of a node are started."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from configs import plugins
from launch.spec import DECIDED, Facts, LaunchSpec, NodeCommand, Program


class Starter(ABC):
    """The base class for each file of launch/starters/, whose `build` makes one."""

    # Whether it can count the GPUs on a node itself (`--nproc-per-node gpu`).
    counts_gpus = False
    # Whether it serves the store at MASTER_PORT itself, so that no worker may.
    serves_port = False
    # The package that the workers' Python needs; None: only the standard library.
    needs: str | None = None

    def problems(self, program: Program) -> Iterator[str]:
        """Why it cannot start such a program, a line each, as far as that is known beforehand."""
        return iter(())

    @abstractmethod
    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        """The processes of one node; a pure function.

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
    """A process of a node: the arguments of its Python, from the program's folder."""
    node, program = facts.nodes[node_rank], spec.program
    argv = (program.python or node.python, *words)
    env = {**spec.env, "PYTHONUNBUFFERED": "1", **(env or {})}
    return NodeCommand(node.spec.host, node_rank, argv, env, program.cwd or node.repository)


def escaped(words: Sequence[str]) -> list[str]:
    """`words` for torchrun, which would replace `$local_rank` and `$$` in them."""
    return [word.replace("$", "$$") for word in words]


def variables(spec: LaunchSpec, facts: Facts, node_rank: int) -> dict[str, str]:
    """torchrun's variables for all workers of a node, if torchrun does not start them."""
    return {
        "WORLD_SIZE": str(facts.world_size),
        "LOCAL_WORLD_SIZE": str(facts.counts[node_rank]),
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": str(len(facts.nodes)),
        "MASTER_ADDR": facts.master_addr,
        "MASTER_PORT": str(facts.master_port or DECIDED),
        # torchrun also sets these; Lightning recognises torchrun by the first
        "TORCHELASTIC_RUN_ID": spec.run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(facts.world_size),
    }


@cache
def starter_of(name: str) -> Starter:
    """The starter that `--workers name` selects."""
    found: Starter = plugins.load("launch.starters", name)
    return found


def commands_of(spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
    """The processes of every node; a pure function."""
    of_node = starter_of(spec.workers).commands
    return [one for node_rank in range(len(facts.nodes)) for one in of_node(spec, facts, node_rank)]
