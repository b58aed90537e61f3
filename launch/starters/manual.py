"""Workers without torchrun: one process each, which reads its rank from torchrun's variables."""

from launch.spec import Facts, LaunchSpec, NodeCommand
from launch.starters.base import Starter, command, variables


class Manual(Starter):
    """Each worker is a process of its own; rank 0 serves the store."""

    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        words = facts.nodes[node_rank].worker(spec.program)
        commands = []
        for local_rank in range(facts.counts[node_rank]):
            rank = sum(facts.counts[:node_rank]) + local_rank
            own = {"RANK": str(rank), "ROLE_RANK": str(rank), "LOCAL_RANK": str(local_rank)}
            env = {**variables(spec, facts, node_rank), **own}
            commands.append(command(spec, facts, node_rank, words, env, rank))
        return commands


build = Manual()
