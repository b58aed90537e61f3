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
    with pytest.raises(UsageError, match="where rank 0 runs is not known"):
        torchrun_variables({"RANK": "0", "WORLD_SIZE": "4"})
    with pytest.raises(UsageError, match="but its variables do not say which one this is"):
        torchrun_variables({name: SRUN[name] for name in SRUN if name != "SLURM_NODEID"})


@pytest.mark.parametrize("sign", ["PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"])
def test_a_rank_of_nobody_knows_how_many_is_refused(sign):
    with pytest.raises(UsageError, match=f"{sign}=0 says that this process is one of several"):
        torchrun_variables({sign: "0"})


# As Slurm sets them for a shell of salloc, a batch script, and a step of one task.
SHELL = {"SLURM_JOB_ID": "4", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_NPROCS": "4"}
BATCH = {**SHELL, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
STEP = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}


@pytest.mark.parametrize("env", [SHELL, BATCH, STEP, {**STEP, "PMIX_RANK": "0"}])
def test_in_a_job_but_no_rank_of_a_step(env):
    assert torchrun_variables(env) == {}


def test_a_worker_of_torchrun_is_that_in_whatever_it_was_started():
    own = dict(zip(NAMES, "012201", strict=True)) | {"MASTER_ADDR": "a", "MASTER_PORT": "7000"}
    assert torchrun_variables({**SRUN, **MPI_IN_JOB, "PMI_SIZE": "9", **own}) == own


# mpirun inside a job: its daemons are the tasks of a step.
MPI_IN_JOB = {
    **SRUN, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip


def test_an_mpirun_inside_a_job():
    assert ranks(MPI_IN_JOB) == [1, 4, 1, 2, 0, 2]
    mpich = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    only_slurm = {name: text for name, text in MPI_IN_JOB.items() if name.startswith("SLURM_")}
    assert ranks({**only_slurm, **mpich, "MASTER_ADDR": "node0"}) == [1, 4, 1, 2, 0, 2]
    assert torchrun_variables({**MPI_IN_JOB, "OMPI_COMM_WORLD_SIZE": "1"}) == {}


def test_srun_with_pmi_of_its_own():
    assert ranks({**SRUN, "PMI_RANK": "3", "PMI_SIZE": "4"}) == [3, 4, 0, 1, 1, 2]


def test_tasks_of_each_node():
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("4") == [4]


def test_without_scontrol_the_address_is_asked_for(monkeypatch):
    monkeypatch.setenv("PATH", "")
    without = {name: value for name, value in SRUN.items() if name != "MASTER_ADDR"}
    with pytest.raises(UsageError, match="give MASTER_ADDR"):
        torchrun_variables(without | {"SLURM_STEP_NODELIST": "node[0-1]"})
