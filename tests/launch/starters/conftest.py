"""Nodes whose workers a starter starts here, without an agent above them."""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from configs.settings.launch import WorkersPerNode
from launch.agent.processes import process_tree
from launch.agent.processes.workers import Workload, start_workload
from launch.nodes.this_machine import free_port
from launch.spec import (
    Assignment,
    Facts,
    LaunchSpec,
    NodeFacts,
    NodeSpec,
    Program,
    assignments_of,
)
from launch.starters.base import WarmInterpreter, commands_of
from muster.checkout import CHECKOUT
from tests.launch.submit import wait_until

TWO = WorkersPerNode(2)


class Node:
    """One node of two workers, which an agent would lead through its attempts."""

    def __init__(self, folder: Path, starter: str) -> None:
        self.folder = folder
        self.warm = WarmInterpreter()
        self.starter = starter
        self.others = process_tree.children()
        self.env = {
            **os.environ,
            "MUSTER_RUN_DIR": str(folder / "run"),
            "PYTHONPATH": str(folder / "packages"),
        }

    def assignment(self, text: str, *words: str, modules: str = "json") -> Assignment:
        (self.folder / "t.py").write_text(text)
        program = Program(("t.py", *words), cwd=str(self.folder), python=sys.executable)
        spec = LaunchSpec("run", self.folder / "run", program, workers=self.starter)
        spec = replace(spec, preload=modules)
        node = NodeFacts(NodeSpec("localhost", TWO), "node0", sys.executable, str(CHECKOUT), TWO)
        facts = Facts((node,), "127.0.0.1")
        (assignment,) = assignments_of(spec, facts, commands_of(spec, facts))
        return assignment

    def begin(
        self, text: str, *words: str, modules: str = "json", port: int = 0, **env: str
    ) -> Workload:
        """Start the workload of one attempt of a program."""
        assignment = self.assignment(text, *words, modules=modules)
        port = port or free_port()
        return start_workload(assignment, port, {**self.env, **env}, self.warm)

    def wait(self, condition: Callable[[], object]) -> None:
        wait_until(condition, about=self.output)

    def finish(self, workload: Workload) -> Workload:
        self.wait(lambda: not workload.runs)
        return workload

    def output(self) -> str:
        """Return what its workers and their starter have printed."""
        paths = sorted((self.folder / "run").rglob("*"))
        return "".join(
            path.read_text() for path in paths if path.suffix in (".log", ".out", ".err")
        )


@pytest.fixture
def node(tmp_path, request) -> Iterator[Node]:
    (tmp_path / "packages").mkdir()
    node = Node(tmp_path, request.param)
    yield node
    process_tree.end_descendants(5.0, excluded=node.others, staying=node.warm.pids)
    node.warm.end()
