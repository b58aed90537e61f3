"""A worker's identity: from its launcher's variables, flags by hand, or as a single process."""

from dataclasses import asdict
from typing import Any

import pytest

from configs import cli
from configs.settings.train import ByHand
from muster.errors import UsageError
from tests.train.workers import TORCHRUN
from train.distributed.world import World

MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "55490",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip


def by_hand(*argv: str) -> dict[str, Any]:
    return asdict(cli.parse([ByHand], argv, prog="", description="")[0])


TORCHRUN_VARIABLES = {
    "rank": 3, "world_size": 4, "local_rank": 1, "local_world_size": 2, "node_rank": 1,
    "num_nodes": 2, "attempt": 2, "master_addr": "10.10.1.1", "master_port": 29500,
    "run_id": "my-run", "agent_store": True, "is_main": False,
}  # fmt: skip
ALONE = {"rank": 0, "world_size": 1, "run_id": None}
THIRD = {"rank": 2, "world_size": 4, "master_addr": "10.10.1.1", "master_port": 6585}
MADE_UP = "0b1f3c5e-9d2a-4c47-8a3e-5f60718293a4"
HERE = "--master-ip 10.10.1.1"


@pytest.mark.parametrize(
    ("env", "argv", "wanted"),
    [
        (TORCHRUN, "", TORCHRUN_VARIABLES),
        (TORCHRUN, "--rank 1", TORCHRUN_VARIABLES),  # the local rank, from torch.distributed.launch
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, "", {"run_id": None}),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": MADE_UP}, "", {"run_id": None}),
        ({}, "", ALONE),
        ({}, "--local_rank -1", ALONE),
        ({}, "--master-port 6585 --world-size 1", ALONE),
        # as the two courses prescribe
        ({}, f"{HERE} --master-port 6585 --world-size 4 --rank 2", THIRD),
        ({}, "--master_ip=10.10.1.1 --master_port=6585 --world_size=4 --local_rank=2", THIRD),
        ({}, f"{HERE} --master-port 6585 --num-nodes 4 --rank 2", THIRD),
        (MPIRUN, "", {"rank": 1, "world_size": 2, "master_addr": "127.0.0.1"}),
        (MPIRUN, f"{HERE} --num-nodes 2", {"rank": 1, "world_size": 2, "master_addr": "10.10.1.1"}),
        (MPIRUN, "--master-port 6585", {"master_port": 6585}),
        (MPIRUN, "--rank -1", {"world_size": 1}),
        # complete flags win
        (MPIRUN, f"{HERE} --num-nodes 3 --rank 0", {"rank": 0, "world_size": 3}),
        (TORCHRUN, f"{HERE} --num-nodes 3 --rank 0", {"rank": 0, "agent_store": False}),
    ],
)
def test_world_is_read_from_environment_and_flags(env, argv, wanted):
    world = World.find(env, **by_hand(*argv.split()))
    assert {name: getattr(world, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("env", "argv", "message"),
    [
        ({"LOCAL_RANK": "first"}, "", "LOCAL_RANK='first'"),
        ({}, "--rank 3", "--world-size is missing"),
        ({"MASTER_ADDR": None}, "", "MASTER_ADDR=NODE0"),
        ({"RANK": "4"}, "", "RANK 4 "),
        ({"WORLD_SIZE": "four"}, "", "WORLD_SIZE is four"),
        ({"MASTER_PORT": "80"}, "", "between 1024 and 65535 (got 80)"),
        (None, "--rank 1 --world-size 4", "--master-ip is missing"),
        (None, "--world-size 4 --master-ip 10.0.0.1", "--rank is missing"),
        (None, "--rank 1 --master-ip 10.0.0.1", "--world-size is missing"),
        (None, "--rank 4 --world-size 4", "--rank 4 "),
        (None, "--rank 0 --master-port 1023", "between 1024 and 65535 (got 1023)"),
        (MPIRUN, "--num-nodes 4", "--world-size is 4"),
        (MPIRUN, "--rank 0", "--rank is 0"),
        ({}, "--master-port 6585", "--rank is missing"),
        (None, "--master-port 6585", "--master-port 6585 "),
    ],
)
def test_incomplete_or_contradicting_rank_settings_are_refused(env, argv, message):
    """The environment is torchrun's with changes, mpirun's, or empty."""
    every = env if env is MPIRUN else {} if env is None else {**TORCHRUN, **env}
    env = {name: value for name, value in every.items() if value is not None}
    with pytest.raises(UsageError) as error:
        World.find(env, **by_hand(*argv.split()))
    assert message in str(error.value) and ("\n" not in str(error.value) or argv)


def test_ranks_of_an_mpirun_agree_on_their_own_port():
    port = World.find(MPIRUN).master_port
    assert port == World.find({**MPIRUN, "OMPI_COMM_WORLD_RANK": "0"}).master_port
    assert port != World.find({**MPIRUN, "PMIX_NAMESPACE": "18696"}).master_port
