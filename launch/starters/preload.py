"""One process per node imports what the program needs, and forks the workers."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from launch.spec import WORKER_MAIN, Facts, LaunchSpec, NodeCommand, Program
from launch.starters.base import Starter, variables
from muster.errors import refuse

PRELOAD = str(Path(WORKER_MAIN).with_name("preload.py"))


class Preload(Starter):
    """Like torchrun, one process that stays; rank 0 serves the store."""

    def problems(self, program: Program) -> Iterator[str]:
        """As in the contract: nothing is imported for what is started by another command."""
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
        """As in the contract.

        Raises:
            UsageError: the program is no Python, or has a command in front of it.
        """
        node, program = facts.nodes[node_rank], spec.program
        refuse(self.problems(program))
        counts = [int(one.nproc) for one in facts.nodes]
        argv = (
            program.python or node.python,
            f"{node.repository}/{PRELOAD}",
            *("--nproc", str(counts[node_rank])),
            *("--first-rank", str(sum(counts[:node_rank]))),
            *("--program", name_of(program.source, program.argv)),
            *(("--modules", spec.preload) if spec.preload else ()),
            *("--", *program.argv),
        )
        env = variables(spec, facts, node_rank)
        return [NodeCommand(node.spec.host, node_rank, argv, env, program.cwd or node.repository)]


def name_of(source: str, argv: tuple[str, ...]) -> str:
    """A plain name under which a program's imports are remembered: `train-1a2b3c4d`."""
    word = argv[1] if argv[0] == "-m" else argv[0]
    stem = Path(word).name.removesuffix(".py").lstrip("-")  # such as --function
    plain = "".join(one if one.isalnum() or one in "._-" else "-" for one in stem) or "program"
    return f"{plain}-{hashlib.sha256(f'{source}:{word}'.encode()).hexdigest()[:8]}"


build = Preload()
