"""The torchrun command of one node: the only Python file that knows torchrun's flags."""

from launch.spec import DECIDED, RUN_MODULE, Facts, LaunchSpec, NodeCommand
from launch.starters.base import Starter


class Torchrun(Starter):
    """torchrun's agent, with a static rendezvous: addresses and node ranks are the plan's.

    (c10d numbers nodes by arrival, and decides by hostname which of them serves the store.)
    """

    counts_gpus = True
    needs = "torch"

    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        node, program = facts.nodes[node_rank], spec.program
        argv = (
            program.python or node.python,
            *(f"{node.repository}/{RUN_MODULE}", "torch.distributed.run"),
            *("--nnodes", str(len(facts.nodes))),
            *("--nproc-per-node", str(node.nproc)),
            *("--node-rank", str(node_rank)),
            *("--master-addr", facts.master_addr),
            *("--master-port", str(facts.master_port or DECIDED)),
            *("--rdzv-id", spec.run_id),  # reaches the workers as TORCHELASTIC_RUN_ID
            *("--max-restarts", "0"),
            *node.worker(program),
        )
        env = {**spec.env, "PYTHONUNBUFFERED": "1"}
        return [NodeCommand(node.spec.host, node_rank, argv, env, program.cwd or node.repository)]


build = Torchrun()
