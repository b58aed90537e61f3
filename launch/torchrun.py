"""The torchrun command of one node: the only Python file that knows torchrun's flags."""

from launch.spec import Facts, LaunchSpec


def command(spec: LaunchSpec, facts: Facts, node_rank: int) -> tuple[str, ...]:
    """torchrun's agent for one node, with the workers it starts.

    The rendezvous is static: addresses are numeric and node ranks are the plan's. (c10d numbers
    nodes by arrival, and decides by hostname which of them serves the store.)
    """
    return (
        facts.python,
        *("-m", "torch.distributed.run"),
        *("--nnodes", str(len(spec.nodes))),
        *("--nproc-per-node", str(facts.nproc[node_rank])),
        *("--node-rank", str(node_rank)),
        *("--master-addr", facts.master_addr),
        *("--master-port", str(facts.master_port)),
        *("--rdzv-id", spec.run_id),  # reaches the workers as TORCHELASTIC_RUN_ID
        *("--max-restarts", "0"),
        *("-m", "train.worker"),
        *spec.worker_argv,
    )
