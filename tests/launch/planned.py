"""A run on two nodes, and a launcher on this machine that plans it."""

from pathlib import Path

from configs.settings.launch import LaunchConfig, WorkersPerNode
from configs.settings.remote import Settings, SlurmConfig, SshConfig
from launch.launchers.local import Local
from launch.spec import Facts, LaunchSpec, NodeFacts, NodeSpec, Program
from tests.configs.made import make_config

PROGRAM = Program.module("train.worker", "--task=synthetic", "--run-id=my-run")
SPEC = LaunchSpec("my-run", Path("/logs/my-run"), PROGRAM, env={"MUSTER_TTY": "80"})


def node(name: str, nproc: int, address: str) -> NodeFacts:
    workers = WorkersPerNode(nproc)
    spec = NodeSpec(name, workers)
    return NodeFacts(spec, name, "/venv/bin/python", "/repo dir", workers, address)


FACTS = Facts((node("node0", 2, "10.10.1.1"), node("node1", 1, "10.10.1.2")), "10.10.1.1", 29123)


def local(**config) -> Local:
    return Local(Settings(make_config(LaunchConfig, **config), SshConfig(), SlurmConfig()))
