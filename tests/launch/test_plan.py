"""The plan of a launcher, as a value."""

import shlex
from pathlib import Path

import pytest

from launch.launchers.local import Local
from launch.spec import Facts, LaunchSpec, NodeSpec

SPEC = LaunchSpec(
    run_id="my-run",
    run_dir=Path("/logs/my-run"),
    nodes=(NodeSpec("localhost", 2), NodeSpec("localhost", 1)),
    worker_argv=("--task=synthetic", "--run-id=my-run"),
    env={"MUSTER_TTY": "80"},
)
FACTS = Facts("/venv/bin/python", Path("/repo dir"), "127.0.0.1", 29123, (2, 1))


def option(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_one_agent_per_pretend_node():
    plan = Local().plan(SPEC, FACTS)
    assert [command.node_rank for command in plan] == [0, 1]
    assert [option(command.argv, "--node-rank") for command in plan] == ["0", "1"]
    assert [option(command.argv, "--nproc-per-node") for command in plan] == ["2", "1"]
    for command in plan:
        assert command.argv[:3] == ("/venv/bin/python", "-m", "torch.distributed.run")
        assert option(command.argv, "--nnodes") == "2"
        assert option(command.argv, "--master-addr") == "127.0.0.1"
        assert option(command.argv, "--master-port") == "29123"
        assert option(command.argv, "--rdzv-id") == "my-run"
        assert command.argv[-3:] == ("train.worker", *SPEC.worker_argv)
        assert command.env["MUSTER_TTY"] == "80" and command.cwd == Path("/repo dir")


def test_planning_twice_gives_the_same():
    assert Local().plan(SPEC, FACTS) == Local().plan(SPEC, FACTS)


def test_a_line_is_one_command_for_a_shell():
    (first, _) = Local().plan(SPEC, FACTS)
    words = shlex.split(first.line())
    assert words[:3] == ["cd", "/repo dir", "&&"]
    assert words[3] == "env" and "MUSTER_TTY=80" in words
    assert tuple(words[-len(first.argv) :]) == first.argv


def test_a_port_is_free_and_below_those_the_kernel_gives_out():
    facts = Local().probe(SPEC)
    assert 20_000 <= facts.master_port < 32_000 and facts.nproc == (2, 1)


@pytest.mark.parametrize(("visible", "count"), [("0,2,5", 3), ("0", 1)])
def test_gpus_are_those_that_are_visible(monkeypatch, visible, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    spec = LaunchSpec("r", Path("/r"), (NodeSpec("localhost", "gpu"),), ())
    assert Local().probe(spec).nproc == (count,)
