"""The plan of a launcher, as a value."""

import shlex
import socket
from pathlib import Path

import pytest

from configs.errors import MusterError
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
    facts = Local().probe(SPEC.nodes, None)
    assert 20_000 <= facts.master_port < 32_000 and facts.nproc == (2, 1)


def test_a_port_is_busy_on_whatever_address_it_is_used():
    with (
        socket.create_server(("127.0.0.2", 0)) as taken,
        pytest.raises(MusterError, match="is in use on this machine"),
    ):
        Local().probe(SPEC.nodes, taken.getsockname()[1])


def test_a_port_that_was_just_given_up_is_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()  # the side that closes first keeps the port for a minute
            client.recv(1)
    assert Local().probe(SPEC.nodes, port).master_port == port


@pytest.mark.parametrize(("visible", "count"), [("0,2,5", 3), ("0", 1), ("1,-1,0", 1)])
def test_gpus_are_those_that_are_visible(monkeypatch, visible, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Local().probe((NodeSpec("localhost", "gpu"),), None).nproc == (count,)
