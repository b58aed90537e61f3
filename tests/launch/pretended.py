"""A launcher whose agents are `pretended_agent.py`, for tests of whoever leads a run."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from launch.agent.agent_job import AgentCommand, AgentJob
from launch.agent.assignment import Assignment
from launch.runs.restart import lead
from launch.spec import Facts, LaunchSpec, NodeCommand, NodeFacts, NodeSpec
from tests.launch.submit import REPOSITORY

FACTS = Facts((NodeFacts(NodeSpec("localhost", 1), "node0", "python", "/", 1),), "127.0.0.1")


def agent_command(run_dir: Path, mode: str) -> AgentCommand:
    assignment = Assignment(
        run_id="run",
        run_dir=str(run_dir),
        cwd="/",
        index=0,
        count=1,
        name="node0",
        workers=1,
        commands=(),
        head_address="127.0.0.1",
        head_ports=(0,),
        master_port=None,
        token="secret",
        proof="proof",
    )
    argv = (sys.executable, "-m", "tests.launch.pretended_agent", mode)
    return AgentCommand(argv, REPOSITORY, assignment)


class Pretended:
    """Starts one agent in each attempt; `asked` is called whenever it probes."""

    def __init__(self, mode: str, asked: Callable[[], None] = lambda: None) -> None:
        self.launched = 0
        self._mode, self._asked = mode, asked

    def probe(self) -> Facts:
        self._asked()
        return FACTS

    assume = probe

    def plan(self, spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
        return []

    def show(self, spec: LaunchSpec, facts: Facts) -> str:
        return ""

    def launch(self, spec: LaunchSpec, facts: Facts, plan: Sequence[NodeCommand]) -> AgentJob:
        self.launched += 1
        agent_commands = [agent_command(spec.run_dir, self._mode)]
        return AgentJob(spec.run_dir, agent_commands, prefixes=False, quiet=True)


if __name__ == "__main__":  # pretended.py MODE RUN_DIR: lead one run, as submit.py does
    run = LaunchSpec("run", Path(sys.argv[2]), ("--task=synthetic",), join_s=20.0)
    sys.exit(lead(Pretended(sys.argv[1]), "local", run, FACTS, restarts=0, least=1))
