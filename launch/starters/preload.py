"""One process per node imports what the program needs, and forks the workers."""

from collections.abc import Iterator
from pathlib import Path

from launch.spec import WORKER_MAIN, Facts, LaunchSpec, NodeCommand, Program
from launch.starters.base import Starter, command, variables
from muster.errors import refuse

PRELOAD = str(Path(WORKER_MAIN).with_name("preload.py"))


class Preload(Starter):
    """Like torchrun, one process that stays; rank 0 serves the store."""

    def problems(self, program: Program) -> Iterator[str]:
        """See the contract: nothing can be imported for a program that another command starts."""
        if program.wrap:
            yield (
                f"--workers preload forks the workers, and --wrap {program.wrap[0]} starts each by "
                "a command; use --workers torchrun"
            )
        if program.argv[0] == "--exec":
            yield (
                f"--workers preload imports for Python programs, and {program.argv[1]} is another "
                "command; use --workers torchrun or manual"
            )

    def commands(self, spec: LaunchSpec, facts: Facts, node_rank: int) -> list[NodeCommand]:
        """See the contract.

        Raises:
            UsageError: the program is not Python, or another command starts it.
        """
        refuse(self.problems(spec.program))
        words = (
            f"{facts.nodes[node_rank].repository}/{PRELOAD}",
            *("--nproc", str(facts.counts[node_rank])),
            *("--first-rank", str(sum(facts.counts[:node_rank]))),
            *("--modules", spec.preload or "torch"),
            *("--", *spec.program.worker_argv),
        )
        return [command(spec, facts, node_rank, words, variables(spec, facts, node_rank))]


build = Preload()
