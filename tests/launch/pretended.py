"""A launcher whose agents are `pretended_agent.py`, for tests of the code that leads a run."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from configs.settings.launch import ONE_WORKER, LaunchConfig
from configs.settings.remote import Settings, SlurmConfig, SshConfig
from launch.agent.led_run import LedRun
from launch.launchers.base import Launcher
from launch.leading.leader import lead
from launch.nodes.channel import start_each
from launch.spec import (
    Assignment,
    Facts,
    LaunchSpec,
    NodeCommand,
    NodeFacts,
    NodeSpec,
    Program,
    assignments_of,
)

FACTS = Facts(
    (NodeFacts(NodeSpec("localhost", ONE_WORKER), "node0", "python", "/", ONE_WORKER),), "127.0.0.1"
)


def assignment(run_dir: Path) -> Assignment:
    (one,) = assignments_of(LaunchSpec("run", run_dir, Program(())), FACTS, [])
    return one


class Pretended(Launcher):
    """Starts one agent in each attempt; `asked` is called whenever it probes."""

    name = "local"  # the launcher that its runs' records name

    def __init__(
        self, mode: str, asked: Callable[[], None] = lambda: None, facts: Facts = FACTS
    ) -> None:
        super().__init__(Settings(LaunchConfig(), SshConfig(), SlurmConfig()))
        self._facts = facts
        self.launched = 0
        self._mode, self._asked = mode, asked

    def probe(self) -> Facts:
        self._asked()
        return self._facts

    assume = probe

    def plan(self, spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
        return []

    def launch(self, spec: LaunchSpec, facts: Facts) -> LedRun:
        self.launched += 1
        argv = (sys.executable, "-m", "tests.launch.pretended_agent", self._mode)
        start = partial(start_each, lambda index, node: argv, spec.run_dir)
        run = LedRun(start, self.plan, prefixes=False)
        run.start(spec, facts)
        return run


PROGRAM = Program.module("train.worker", "--task=synthetic", takes_resume=True)

if __name__ == "__main__":  # pretended.py MODE RUN_DIR: lead one run, as submit.py does
    run = LaunchSpec("run", Path(sys.argv[2]), PROGRAM, join_s=300.0, quiet=True)
    sys.exit(lead(Pretended(sys.argv[1]), run, FACTS))
