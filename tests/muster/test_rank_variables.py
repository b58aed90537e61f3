"""torchrun's variables from whatever started a process."""

import pytest

from muster.errors import UsageError
from muster.rank_variables import tasks_per_node, torchrun_variables

NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"]
SRUN = {
    "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "2", "SLURM_PROCID": "3", "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "3,1",
    "SLURM_STEP_NUM_NODES": "2", "MASTER_ADDR": "node0",
}  # fmt: skip


def ranks(env):
    found = torchrun_variables(env)
    return [int(found[name]) for name in NAMES]


def test_a_process_alone():
    assert torchrun_variables({"HOME": "/root", "SLURM_JOB_ID": "3", "SLURM_NTASKS": "4"}) == {}


def test_torchruns_own():
    own = dict(zip(NAMES, "542221", strict=True)) | {"MASTER_ADDR": "a", "MASTER_PORT": "7"}
    assert torchrun_variables(own) == own


def test_by_hand():
    by_hand = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1"}
    assert ranks(by_hand) == [3, 4, 0, 1, 3, 4]
    found = torchrun_variables(by_hand)
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.1", "29500")
    assert ranks({**by_hand, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}) == [3, 4, 1, 2, 1, 2]


def test_srun():
    assert ranks(SRUN) == [3, 4, 0, 1, 1, 2]
    assert torchrun_variables(SRUN)["MASTER_PORT"] == str(20000 + 17 * 7 + 2)


def test_mpirun():
    here = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    here |= {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    assert ranks(here) == [1, 2, 1, 2, 0, 1]
    assert torchrun_variables(here)["MASTER_ADDR"] == "127.0.0.1"
    with pytest.raises(UsageError, match="mpirun -x MASTER_ADDR"):
        torchrun_variables({**here, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"})
    assert ranks({"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "a"}) == [1, 2, 0, 1, 1, 2]


def test_half_of_them_is_refused():
    with pytest.raises(UsageError, match="RANK is not set and WORLD_SIZE is 4"):
        torchrun_variables({"WORLD_SIZE": "4"})
    with pytest.raises(UsageError, match="nothing says where rank 0 is"):
        torchrun_variables({"RANK": "0", "WORLD_SIZE": "4"})


def test_tasks_of_each_node():
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("4") == [4]


def test_without_scontrol_the_address_is_asked_for(monkeypatch):
    monkeypatch.setenv("PATH", "")
    without = {name: value for name, value in SRUN.items() if name != "MASTER_ADDR"}
    with pytest.raises(UsageError, match="give MASTER_ADDR"):
        torchrun_variables(without | {"SLURM_STEP_NODELIST": "node[0-1]"})
