"""The `accelerate launch` command of one node, for workers that need accelerate's settings."""

from collections.abc import Sequence

from launch.spec import PLACEHOLDER, RUN_MODULE, Facts, LaunchSpec, NodeCommand
from launch.starters.base import NodeStart, StartedProcess, Starter, command, escaped, starter_of
from muster.errors import UsageError


class Accelerate(Starter):
    """`accelerate launch`, which uses torchrun with a static rendezvous."""

    serves_port = True
    needs = "accelerate"

    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        """See the contract; every node needs the same number of workers.

        Raises:
            UsageError: the nodes have different numbers of workers.
        """
        counts = [node.nproc for node in facts.nodes]
        if len(set(counts)) > 1 or facts.world_size is None:
            raise UsageError(
                f"--workers accelerate needs the same number of workers on each node, but got "
                f"{', '.join(map(str, counts))}"
                "\ntip: use --workers torchrun"
            )
        node = facts.nodes[node_rank]
        world_size = facts.world_size
        worker: Sequence[str] = node.worker(spec.program)
        if world_size > 1:  # one worker is started without torchrun
            worker = escaped(worker)
        words = (
            *(f"{node.repository}/{RUN_MODULE}", "accelerate.commands.launch"),
            *("--num_machines", str(len(facts.nodes))),
            *("--num_processes", str(world_size)),
            *("--machine_rank", str(node_rank)),
            *("--main_process_ip", facts.master_addr),
            *("--main_process_port", str(facts.master_port or PLACEHOLDER)),
            *("--rdzv_backend", "static"),
            "--same_network",
            *("--mixed_precision", "no"),  # the worker applies --precision itself
            *("--dynamo_backend", "no"),
            # on CPUs, too: --cpu starts one process, see
            # https://github.com/huggingface/accelerate/issues/2741
            *(("--multi_gpu",) if world_size > 1 else ()),
            *worker,
        )
        return [command(spec, facts, node_rank, words)]

    def start(self, command: NodeCommand, node: NodeStart) -> StartedProcess:
        """See the contract; accelerate uses torchrun, whose log shows how workers end."""
        return starter_of("torchrun").start(command, node)


build = Accelerate()
