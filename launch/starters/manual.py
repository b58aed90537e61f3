"""Workers without torchrun: one process each, which reads its rank from torchrun's variables."""

from launch.spec import Facts, LaunchSpec, NodeCommand
from launch.starters.base import Starter, command, variables


class Manual(Starter):
    """Each worker is a process of its own; rank 0 serves the store."""

    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        words = facts.nodes[node_rank].worker(spec.program)
        found = []
        for local_rank in range(facts.counts[node_rank]):
            rank = str(sum(facts.counts[:node_rank]) + local_rank)
            own = {"RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": str(local_rank)}
            env = {**variables(spec, facts, node_rank), **own}
            found.append(command(spec, facts, node_rank, words, env))
        return found


build = Manual()
