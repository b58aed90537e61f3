"""The torchrun command of one node: the only Python file that knows torchrun's flags."""

from launch.spec import DECIDED, Facts, LaunchSpec, NodeCommand


def commands(spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
    """torchrun's agent for one node, with the workers it starts.

    The rendezvous is static: addresses are numeric and node ranks are the plan's. (c10d numbers
    nodes by arrival, and decides by hostname which of them serves the store.)
    """
    node = facts.nodes[node_rank]
    argv = (
        node.python,
        *("-m", "torch.distributed.run"),
        *("--nnodes", str(len(facts.nodes))),
        *("--nproc-per-node", str(node.nproc)),
        *("--node-rank", str(node_rank)),
        *("--master-addr", facts.master_addr),
        *("--master-port", str(facts.master_port or DECIDED)),
        *("--rdzv-id", spec.run_id),  # reaches the workers as TORCHELASTIC_RUN_ID
        *("--max-restarts", "0"),
        *("-m", spec.module),
        *spec.worker_argv,
    )
    env = {**spec.env, "PYTHONUNBUFFERED": "1"}
    return [NodeCommand(node.spec.host, node_rank, argv, env, node.repository)]


build = commands
