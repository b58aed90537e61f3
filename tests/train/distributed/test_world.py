"""Who a worker is: its launcher's variables, flags by hand, or one process alone."""

from dataclasses import asdict
from typing import Any

import pytest

from configs import cli
from configs.settings.train import ByHand
from muster.errors import UsageError
from train.distributed.world import World

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.10.1.1", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "my-run", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "55490",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip


def by_hand(*argv: str) -> dict[str, Any]:
    return asdict(cli.parse([ByHand], argv, prog="", description="")[0])


def test_torchrun_variables_are_read_once_into_a_value():
    world = World.find(TORCHRUN)
    assert (world.rank, world.world_size, world.local_rank, world.local_world_size) == (3, 4, 1, 2)
    assert (world.node_rank, world.num_nodes, world.attempt) == (1, 2, 2)
    assert (world.master_addr, world.master_port) == ("10.10.1.1", 29500)
    assert world.run_id == "my-run" and world.agent_store and not world.is_main


def test_torch_distributed_launch_gives_the_local_rank_as_a_flag_too():
    assert World.find(TORCHRUN, rank=1) == World.find(TORCHRUN)
    with pytest.raises(UsageError, match="--world-size is missing"):
        World.find(TORCHRUN, rank=3)


@pytest.mark.parametrize("made_up", ["none", "0b1f3c5e-9d2a-4c47-8a3e-5f60718293a4"])
def test_a_run_id_that_torchrun_made_up_is_none(made_up):
    assert World.find({**TORCHRUN, "TORCHELASTIC_RUN_ID": made_up}).run_id is None


@pytest.mark.parametrize("argv", ["", "--local_rank -1", "--master-port 6585 --world-size 1"])
def test_a_single_process_is_alone(argv):
    world = World.find({}, **by_hand(*argv.split()))
    assert (world.rank, world.world_size, world.run_id) == (0, 1, None)


@pytest.mark.parametrize(
    "argv",
    [
        ["--master-ip", "10.10.1.1", "--master-port", "6585", "--world-size", "4", "--rank", "2"],
        ["--master_ip=10.10.1.1", "--master_port=6585", "--world_size=4", "--local_rank=2"],
        ["--master-ip", "10.10.1.1", "--master-port", "6585", "--num-nodes", "4", "--rank", "2"],
    ],
)
def test_flags_as_the_two_courses_prescribe(argv):
    world = World.find({}, **by_hand(*argv))
    assert (world.rank, world.world_size) == (2, 4)
    assert (world.master_addr, world.master_port) == ("10.10.1.1", 6585)


@pytest.mark.parametrize(
    ("env", "argv", "message"),
    [
        ({"LOCAL_RANK": "first"}, "", "LOCAL_RANK='first' is not a number"),
        ({"MASTER_ADDR": None}, "", "give its address, NODE0: MASTER_ADDR=NODE0"),
        ({"RANK": "4"}, "", "RANK 4 is not below WORLD_SIZE 4"),
        ({"WORLD_SIZE": "four"}, "", "WORLD_SIZE is four; set both to a number"),
        ({"MASTER_PORT": "80"}, "", "between 1024 and 65535 (got 80)"),
        (None, "--rank 1 --world-size 4", "--master-ip is missing"),
        (None, "--world-size 4 --master-ip 10.0.0.1", "--rank is missing"),
        (None, "--rank 1 --master-ip 10.0.0.1", "--world-size is missing"),
        (None, "--rank 4 --world-size 4", "ranks go from 0 to 3"),
        (None, "--rank 0 --master-port 1023", "between 1024 and 65535 (got 1023)"),
        (MPIRUN, "--num-nodes 4", "--world-size 4, but the launcher of this process"),
        (MPIRUN, "--rank 0", "--rank 0, but the launcher of this process has set it to 1"),
        ({}, "--master-port 6585", "--rank is missing"),
        (None, "--master-port 6585", "--master-port 6585: this is the only process"),
    ],
)
def test_what_is_incomplete_broken_or_contradicts_the_launcher_is_named(env, argv, message):
    """Environments are changes of torchrun's, mpirun's, or none."""
    every = env if env is MPIRUN else {} if env is None else {**TORCHRUN, **env}
    env = {name: value for name, value in every.items() if value is not None}
    with pytest.raises(UsageError) as error:
        World.find(env, **by_hand(*argv.split()))
    assert message in str(error.value) and ("\n" not in str(error.value) or argv)


def test_a_rank_of_mpirun_is_one_of_all():
    world = World.find(MPIRUN)
    assert (world.rank, world.world_size, world.master_addr) == (1, 2, "127.0.0.1")
    assert world.master_port == World.find({**MPIRUN, "OMPI_COMM_WORLD_RANK": "0"}).master_port
    assert world.master_port != World.find({**MPIRUN, "PMIX_NAMESPACE": "18696"}).master_port


def test_flags_say_the_rest_of_what_the_launcher_says():
    world = World.find(MPIRUN, **by_hand("--master-ip", "10.10.1.1", "--num-nodes", "2"))
    assert (world.rank, world.world_size, world.master_addr) == (1, 2, "10.10.1.1")
    assert World.find(MPIRUN, **by_hand("--master-port", "6585")).master_port == 6585


def test_flags_that_are_complete_win():
    typed = by_hand("--master-ip", "10.10.1.1", "--num-nodes", "3", "--rank", "0")
    for env in (MPIRUN, TORCHRUN):
        world = World.find(env, **typed)
        assert (world.rank, world.world_size, world.agent_store) == (0, 3, False)
    assert World.find(MPIRUN, **by_hand("--rank", "-1")).world_size == 1
