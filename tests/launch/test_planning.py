"""The plan of a launcher, as a value."""

import itertools
import json
import socket
from dataclasses import replace

import pytest

from configs.settings.launch import (
    ONE_PER_GPU,
    ONE_WORKER,
    LaunchConfig,
    NodeCount,
    PortRange,
)
from configs.settings.train import BenchConfig, TrainConfig
from launch.programs.own_program import OwnProgram
from launch.spec import PLACEHOLDER, assignments_of
from muster.errors import MusterError, UsageError
from tests.launch.planned import FACTS, PROGRAM, SPEC, local


def test_plan_has_one_torchrun_per_node():
    usual = {"--nnodes": "2", "--master-addr": "10.10.1.1", "--master-port": "29123"}
    plan = local().plan(SPEC, FACTS)
    for rank, (command, nproc) in enumerate(zip(plan, "21", strict=True)):
        module = ("/repo dir/muster/run_module.py", "torch.distributed.run")
        assert command.node_rank == rank and command.argv[:3] == ("/venv/bin/python", *module)
        own = {"--node-rank": str(rank), "--nproc-per-node": nproc, "--rdzv-id": "my-run"}
        assert dict(itertools.pairwise(command.argv)).items() >= (usual | own).items()
        assert command.argv[-4:] == PROGRAM.argv
        assert command.env["MUSTER_TTY"] == "80" and command.cwd == "/repo dir"


PARSERS = {"torchrun": "torch.distributed.run", "accelerate": "accelerate.commands.launch"}


@pytest.mark.parametrize(("starter", "module"), PARSERS.items())
def test_flags_of_program_are_not_read_by_its_starter(starter, module):
    found = pytest.importorskip(module)
    parser = getattr(found, "get_args_parser", None) or found.launch_command_parser
    words = ("train.py", "--log", "1", "--start=spawn", "--num_proc", "--", "-m", "--max-restarts")
    spec = replace(SPEC, program=replace(PROGRAM, argv=words), workers=starter)
    nodes = tuple(replace(node, nproc=ONE_WORKER) for node in FACTS.nodes)
    for planned in local().plan(spec, replace(FACTS, nodes=nodes)):
        args = parser().parse_args(planned.argv[3:])
        assert args.training_script.endswith("worker_main.py")
        assert tuple(args.training_script_args) == words


def test_each_agent_is_told_which_ranks_are_its_own():
    found = assignments_of(SPEC, FACTS, local().plan(SPEC, FACTS))
    assert [one.ranks for one in found] == [one.machine_ranks for one in found] == [(0, 1), (2,)]
    for one in found:
        assert type(one).from_json(json.loads(json.dumps(one.to_json()))) == one


def test_simulated_nodes_know_all_workers_of_their_machine():
    launcher = local(nodes="2", nproc_per_node="2,1")
    found = assignments_of(SPEC, launcher.assume(), [])
    assert [(one.ranks, one.machine_ranks) for one in found] == [
        ((0, 1), (0, 1, 2)),
        ((2,), (0, 1, 2)),
    ]


def test_an_agent_listens_at_the_ports_of_the_range():
    spec = replace(SPEC, ports=PortRange(20_000, 20_001))
    first = assignments_of(spec, FACTS, local().plan(spec, FACTS))[0]
    assert first.coordinator_ports == (20_000, 20_001)
    sent = json.loads(json.dumps(first.to_json()))
    assert sent["spec"]["ports"] == [20_000, 20_001]
    assert type(first).from_json(sent) == first


def test_by_hand_each_worker_is_told_who_it_is():
    plan = local().plan(replace(SPEC, workers="manual"), FACTS)
    assert [command.node_rank for command in plan] == [0, 0, 1]
    assert [command.host for command in plan] == ["node0", "node0", "node1"]
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    lines = [tuple(int(command.env[name]) for name in names) for command in plan]
    assert lines == [(0, 0, 2, 0), (1, 1, 2, 0), (2, 0, 1, 1)]
    for command in plan:
        worker = "/repo dir/muster/worker/worker_main.py"
        assert command.argv == ("/venv/bin/python", worker, *PROGRAM.argv)
        usual = {"TORCHELASTIC_RUN_ID": "my-run", "WORLD_SIZE": "3", "GROUP_WORLD_SIZE": "2"}
        usual |= {"MASTER_ADDR": "10.10.1.1", "MASTER_PORT": "29123"}
        assert command.env.items() >= usual.items()


@pytest.mark.parametrize("workers", ["manual", "preload", "accelerate"])
def test_dry_run_names_no_ranks_before_gpus_are_counted(workers):
    uncounted = [replace(each, nproc=ONE_PER_GPU) for each in FACTS.nodes]
    facts = replace(FACTS, nodes=(*uncounted, *FACTS.nodes))
    assert "how many GPUs each node has" in local().show(replace(SPEC, workers=workers), facts)


def test_a_dry_run_says_that_commands_are_for_a_container():
    program = replace(PROGRAM, image="/images/torch.sif")
    first, *commands = local().show(replace(SPEC, program=program), FACTS).splitlines()
    assert first == "# inside /images/torch.sif, by each node's own engine:"
    assert commands == local().show(SPEC, FACTS).splitlines()


@pytest.mark.parametrize("style", ["torchrun", "manual", "accelerate", "preload"])
@pytest.mark.parametrize("port", [None, 29123])
def test_port_of_node_0_is_filled_in_outside_program_words(style, port):
    program = replace(PROGRAM, argv=("train.py", PLACEHOLDER))
    spec = replace(SPEC, workers=style, program=program)
    nodes = tuple(replace(node, nproc=ONE_WORKER) for node in FACTS.nodes)
    for planned in local().plan(spec, replace(FACTS, nodes=nodes, master_port=port)):
        assert (PLACEHOLDER in (*planned.argv[:-1], *planned.env.values())) == (port is None)
        command = planned.with_port(23456)
        assert command.argv[-2:] == program.argv
        words = (*command.argv[:-1], *command.env.values())
        assert str(port or 23456) in words and PLACEHOLDER not in words


def test_a_port_is_free_and_below_those_the_kernel_gives_out():
    facts = local(nodes=2, nproc_per_node="3").assume()
    assert 20_000 <= facts.master_port < 32_000
    assert [str(one.nproc) for one in facts.nodes] == ["3", "3"] and facts.world_size == 6


def test_a_port_is_busy_on_whatever_address_it_is_used():
    with (
        socket.create_server(("127.0.0.2", 0)) as taken,
        pytest.raises(MusterError, match="is in use on this machine"),
    ):
        local(master_port=taken.getsockname()[1]).probe()


def test_a_port_that_was_just_given_up_is_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()  # the side that closes first keeps the port for a minute
            client.recv(1)
    assert local(master_port=port).probe().master_port == port


@pytest.mark.parametrize(("visible", "count"), [("0,2,5", 3), ("0", 1), ("1,-1,0", 1)])
def test_gpus_are_those_that_are_visible(monkeypatch, visible, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local(nproc_per_node="gpu").probe().world_size == count


def test_local_batch_size_needs_a_fixed_number_of_nodes():
    launch, train = LaunchConfig(nodes=NodeCount(2, 3)), TrainConfig(local_batch_size=8)
    with pytest.raises(UsageError, match=r"--local-batch-size 8 on --nodes 2:3: .*--batch-size"):
        OwnProgram(launch, train, BenchConfig()).check("python", None)
    OwnProgram(LaunchConfig(nodes=NodeCount(3, 3)), train, BenchConfig()).check("python", 3)
