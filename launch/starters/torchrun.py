"""The torchrun command of one node: the only Python file with torchrun's flags."""

from launch.spec import DECIDED, RUN_MODULE, Facts, LaunchSpec, NodeCommand
from launch.starters.base import Starter, command, escaped


class Torchrun(Starter):
    """torchrun's agent, with a static rendezvous: addresses and node ranks come from the plan.

    (c10d numbers nodes by arrival, and chooses by hostname which of them serves the store.)
    """

    counts_gpus = True
    serves_port = True
    needs = "torch"

    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        node = facts.nodes[node_rank]
        words = (
            *(f"{node.repository}/{RUN_MODULE}", "torch.distributed.run"),
            *("--nnodes", str(len(facts.nodes))),
            *("--nproc-per-node", str(node.nproc)),
            *("--node-rank", str(node_rank)),
            *("--master-addr", facts.master_addr),
            *("--master-port", str(facts.master_port or DECIDED)),
            *("--rdzv-id", spec.run_id),  # the workers get it as TORCHELASTIC_RUN_ID
            *("--max-restarts", "0"),
            *escaped(node.worker(spec.program)),
        )
        return [command(spec, facts, node_rank, words)]


build = Torchrun()
