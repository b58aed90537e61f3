"""Workers without torchrun: one process each, told who it is by torchrun's own variables."""

from launch.spec import Facts, LaunchSpec, NodeCommand
from launch.starters.base import Starter, variables


class Manual(Starter):
    """Each worker as a process of its own; rank 0 serves the store."""

    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        node, program = facts.nodes[node_rank], spec.program
        counts = [int(one.nproc) for one in facts.nodes]
        same = variables(spec, facts, node_rank)
        first = sum(counts[:node_rank])
        argv = (program.python or node.python, *node.worker(program))
        return [
            NodeCommand(
                node.spec.host,
                node_rank,
                argv,
                {
                    **same,
                    "RANK": str(first + local_rank),
                    "ROLE_RANK": str(first + local_rank),
                    "LOCAL_RANK": str(local_rank),
                },
                program.cwd or node.repository,
            )
            for local_rank in range(counts[node_rank])
        ]


build = Manual()
