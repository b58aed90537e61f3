"""What `--workers` chooses: how the workers of a node are started."""

from abc import ABC, abstractmethod

from launch.spec import Facts, LaunchSpec, NodeCommand


class Starter(ABC):
    """Implemented by each file of launch/starters/, whose `build` is one."""

    # Whether one process starts all workers of a node; else Slurm starts a task for each worker.
    one_per_node = True
    # Whether it can count a node's GPUs there (`--nproc-per-node gpu`).
    counts_gpus = False

    @abstractmethod
    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        """The processes of one node; pure.

        Raises:
            UsageError: it cannot start such workers.
        """
