"""Workers without torchrun: one process each, told who it is by torchrun's own variables."""

from collections.abc import Mapping

from launch.spec import DECIDED, Facts, LaunchSpec, NodeCommand


def commands(spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
    """The workers of one node."""
    node = facts.nodes[node_rank]
    counts = [int(one.nproc) for one in facts.nodes]
    return [
        NodeCommand(
            node.spec.host,
            node_rank,
            (node.python, "-m", spec.module, *spec.worker_argv),
            {
                **spec.env,
                "PYTHONUNBUFFERED": "1",
                **variables(
                    rank=sum(counts[:node_rank]) + local_rank,
                    world_size=sum(counts),
                    local_rank=local_rank,
                    local_world_size=counts[node_rank],
                    node_rank=node_rank,
                    num_nodes=len(counts),
                    master_addr=facts.master_addr,
                    master_port=facts.master_port,
                ),
            },
            node.repository,
        )
        for local_rank in range(counts[node_rank])
    ]


def variables(
    *,
    rank: int,
    world_size: int,
    local_rank: int,
    local_world_size: int,
    node_rank: int,
    num_nodes: int,
    master_addr: str,
    master_port: int | None,
) -> Mapping[str, str]:
    """What torchrun would set for this worker; rank 0 serves the store."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": str(num_nodes),
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port or DECIDED),
    }


build = commands
