"""Workers without torchrun: one process each, told who it is by torchrun's own variables."""

from launch.spec import DECIDED, Facts, LaunchSpec, NodeCommand
from launch.starters.base import Starter


class Manual(Starter):
    """Each worker as a process of its own; rank 0 serves the store."""

    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        node, program = facts.nodes[node_rank], spec.program
        counts = [int(one.nproc) for one in facts.nodes]
        same = {
            **spec.env,
            "PYTHONUNBUFFERED": "1",
            "WORLD_SIZE": str(sum(counts)),
            "LOCAL_WORLD_SIZE": str(counts[node_rank]),
            "GROUP_RANK": str(node_rank),
            "GROUP_WORLD_SIZE": str(len(counts)),
            "MASTER_ADDR": facts.master_addr,
            "MASTER_PORT": str(facts.master_port or DECIDED),
            # what torchrun sets beside these; Lightning, for one, knows it by the first
            "TORCHELASTIC_RUN_ID": spec.run_id,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "ROLE_NAME": "default",
            "ROLE_WORLD_SIZE": str(sum(counts)),
        }
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
